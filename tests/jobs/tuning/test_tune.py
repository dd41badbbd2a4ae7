"""`dray tune` measures every setting on the run's own rows, compares their texts, and writes the best one."""

import re
from pathlib import Path

import pytest
import yaml

from decoding.engine.engine import Engine
from jobs import tune
from jobs.config.loading import load
from jobs.config.run import GenerateConfig
from jobs.work.tuning.setting import Setting
from jobs.work.tuning.trials import Trials
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


def test_one_line_prints_flags_and_writes_the_file_that_is_named(config, job, tmp_path):
    line = [str(job.source), str(job.output), "--model", job.pair[0], "--sampling.max_tokens=6", "--models.device=cpu"]
    file = tmp_path / "new.yaml"
    few = ("--tune.seconds=1e-3", "--tune.slots=2", "--engine.num_slots=2", "--run.progress=none")
    assert tune.main([*line, *few, f"--tune.write={file}"]) == 0
    printed = " ".join(job.printed().split())
    assert "noise: taken as" in printed, "one pair may agree by chance"
    written = load(GenerateConfig, ["--config", str(file)], "test")
    assert f"as flags: --engine.drafter={written.generator.engine.drafter} --engine.num_slots=2" in printed
    assert (written.input.path, written.sampling.params.max_tokens) == (str(job.source), 6)
    assert "tune" not in yaml.safe_load(file.read_text())


def test_a_setting_with_which_memory_runs_out_is_left_out(config, job, monkeypatch):
    make = Trials._engine

    def engine(trials: Trials, setting: Setting) -> Engine:
        if setting.slots == 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return make(trials, setting)

    monkeypatch.setattr(Trials, "_engine", engine)
    assert tune.main(["--config", str(config), *SMALL[:1], "--engine.num_slots=2", "--tune.slots=4"]) == 0
    printed = " ".join(job.printed().split())
    assert re.search(r"left out, as memory ran out: [\w ()]+, 4 slots", printed)
    assert re.search(r"as flags: .*--engine.num_slots=2", printed)
    assert tune.main(["--config", str(config), *SMALL[:1], "--engine.num_slots=4"]) == 1
    assert "memory runs out with the run's own setting (none, 4 slots" in job.printed()


def test_a_file_with_aliases_gets_nothing_which_is_said_before_anything_is_measured(config, job):
    config.write_text(config.read_text() + "engine: {num_slots: &n 4, num_speculative_tokens: *n}\n")
    assert tune.main(["--config", str(config), "--dry-run"]) == 0
    printed = " ".join(job.printed().split())
    assert "nothing will be written: " in printed
    assert "would write no file" in printed
    assert tune.main(["--config", str(config), "--dry-run", f"--tune.write={config}"]) == 2
    assert "cannot get engine.drafter, engine.num_slots: it has aliases there" in " ".join(job.printed().split())


def test_a_tune_that_is_interrupted_says_that_nothing_was_written(config, job, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "_run_together", interrupt)
    assert tune.main(["--config", str(config), *SMALL]) == 3
    assert "interrupted; nothing was written" in job.printed()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--placement=split",), "placement 'split' is set, but tune measures"),
        (("--engine.backend=vllm",), "engine.backend 'vllm' is set, but tune measures"),
        (("--tune.drafts=nowhere",), "nowhere"),
        (("--tune.drafts=auto",), "tune.drafts has 'auto', which found none: an MTP head of"),
        (("--tune.seconds=0",), "tune.seconds"),
    ],
)
def test_what_cannot_be_tuned_is_refused(config, job, flags, message):
    assert tune.main(["--config", str(config), "--no-run.local", *flags]) == 2
    assert message in " ".join(job.printed().split())
