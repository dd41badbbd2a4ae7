"""A run whose target is in stages: the same rows by configuration alone, resumed with another number of stages."""

import json
from pathlib import Path

import pytest

from jobs import generate
from jobs.driver.outcome import Exit
from tests.jobs.runs import arguments, generations, prompts, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]
TWO = ("--stages.count=2", "--stages.num_cpus=0.5")
RANKS = ("--stages.tensor_parallel=2", "--stages.num_cpus=0.5")
APART = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30", "--engine.draft_length=fixed")


def tokens(output: Path) -> list[tuple[int, list[int]]]:
    return [(row["row_id"], row["token_ids"]) for row in generations(output)]


@pytest.mark.slow
def test_a_run_in_stages_writes_the_same_rows_and_may_resume_with_another_placement(
    text_pair: Pair, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", prompts(24))
    assert generate.main(arguments(source, tmp_path / "whole", text_pair)) == Exit.COMPLETE
    staged = tmp_path / "staged"
    assert generate.main(arguments(source, staged, text_pair, *TWO)) == Exit.COMPLETE
    assert tokens(staged) == tokens(tmp_path / "whole")
    assert json.loads((staged / "run.json").read_text())["settings"]["stages"]["count"] == 2
    for flags in ((), (*TWO, *APART), RANKS):
        for path in (staged / "_SUCCESS", staged / "report.json", *sorted(staged.glob("data/*.parquet"))[:2]):
            path.unlink(missing_ok=True)
        assert generate.main(arguments(source, staged, text_pair, *flags)) == Exit.COMPLETE
        assert tokens(staged) == tokens(tmp_path / "whole")
    assert sum(row["num_accepted_tokens"] for row in generations(staged)[:16]) > 20


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stages.count=3",), "a model of 2 layers cannot be cut into 3 stages"),
        (("--stages.count=0",), "stages.count is 0"),
        (("--stages.tensor_parallel=3",), "which is no multiple of it"),
        (("--stages.count=2", "--stages.num_gpus=1", "--models.device=cpu"), "stages.num_gpus is 1; drop one of them"),
        (("--stages.count=2", "--stages.strategy=ANY"), "stages.strategy"),
        (("--stages.count=2", "--stages.timeout_s=0"), "stages.timeout_s is 0"),
        (("--stages.count=2", "--stages.start_timeout_s=600"), "an engine that replaces stages may need 960 seconds"),
    ],
)
def test_bad_values_are_refused_before_any_work(
    flags: tuple[str, ...], message: str, text_pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", prompts(2))
    assert generate.main(arguments(source, tmp_path / "out", text_pair, *flags)) == Exit.BAD_CONFIGURATION
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
