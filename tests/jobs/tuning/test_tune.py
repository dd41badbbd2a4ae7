"""`dray tune` measures every setting on the run's own rows, compares their texts, and writes the best one."""

import re
from pathlib import Path

import pytest
import yaml

from jobs import tune
from jobs.config.loading import load
from jobs.config.run import GenerateConfig
from tests.jobs.conftest import Job
from tests.jobs.runs import prompts, write_jsonl

# So few and short texts that all stages are soon done, whatever the time.
SMALL = ("--tune.seconds=1000", "--tune.slots=2", "--engine.num_slots=2", "--engine.num_speculative_tokens=2")
DRAFTERS = ("none", "ngram", "suffix", "draft (model)", "draft (hybrid)")


@pytest.fixture
def config(job: Job, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the input, and the configuration as a user would."""
    monkeypatch.setenv("COLUMNS", "200")  # no cell is folded
    target, draft = job.pair
    write_jsonl(job.source, [*prompts(5), "no JSON"])
    file = job.folder / "run.yaml"
    file.write_text(
        f"# mine\ninput: {{path: {job.source}, id_column: id}}\noutput: {{path: {job.output}}}\n"
        f"models: {{target: {target}, draft: {draft}, device: cpu}}\nsampling: {{max_tokens: 6}}\n"
        "run: {local: true}\n"
    )
    return file


def test_every_drafter_has_a_line_all_texts_are_the_same_and_the_best_setting_can_be_run(config, job):
    picture = job.folder / "tune.svg"
    assert tune.main(["--config", str(config), *SMALL, f"--tune.picture={picture}"]) == 0
    printed = " ".join(job.printed().split())
    lines = re.findall(r"(none|ngram|suffix|draft \(\w+\)) (\d+) \d+ float32", printed)
    assert {name for name, _ in lines} == set(DRAFTERS)
    assert len(set(lines)) == len(lines)
    assert f"identical, token for token, in {len(lines)} settings (float32)" in printed
    assert "left out: 1 rows" in printed
    assert "noise: two equal settings differed by up to" in printed
    assert "suffix" in picture.read_text()
    tuned = config.with_name("run.tuned.yaml")
    written = load(GenerateConfig, ["--config", str(tuned)], "test")
    assert ("take none" in printed) == (written.generator.engine.drafter == "none")
    assert written.generator.engine.num_slots == 2
    assert "# mine" in tuned.read_text()
    assert "tuned" not in config.read_text()
    assert not job.output.exists(), "nothing of the run is written"


@pytest.mark.usefixtures("lenient_verifier")
def test_a_setting_that_writes_another_text_is_told_and_nothing_is_written(config, job):
    assert tune.main(["--config", str(config), *SMALL, "--sampling.temperature=0"]) == 1
    assert "NOT IDENTICAL" in job.printed()
    assert not config.with_name("run.tuned.yaml").exists()


def test_the_file_of_the_configuration_is_written_into_only_if_it_is_named(config, job):
    other = config.with_name("run.tuned.yaml")
    other.write_text("# by hand\n")
    assert tune.main(["--config", str(config), "--dry-run"]) == 2
    assert "`dray tune` has not written it" in job.printed()
    assert tune.main(["--config", str(config), "--dry-run", f"--tune.write={config}"]) == 0
    assert f"would write {config}" in " ".join(job.printed().split())
    before = yaml.safe_load(config.read_text())
    few = ("--tune.seconds=1e-3", "--tune.slots=2", "--engine.num_slots=2")
    assert tune.main(["--config", str(config), f"--tune.write={config}", *few]) == 0
    after = yaml.safe_load(config.read_text())
    assert set(after.pop("engine")) == {"drafter", "num_slots"}
    assert after == before
    assert config.read_text().startswith("# mine")
    assert other.read_text() == "# by hand\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--placement=split",), "placement 'split' is set, but tune measures"),
        (("--engine.backend=vllm",), "engine.backend 'vllm' is set, but tune measures"),
        (("--tune.drafts=nowhere",), "nowhere"),
        (("--tune.seconds=0",), "tune.seconds"),
    ],
)
def test_what_cannot_be_tuned_is_refused(config, job, flags, message):
    assert tune.main(["--config", str(config), "--no-run.local", *flags]) == 2
    assert message in " ".join(job.printed().split())
