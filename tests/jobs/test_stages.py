"""A run whose target is in stages: the same rows by configuration alone, resumed with another number of stages."""

import json
from pathlib import Path

import pytest
import ray

from actors.engine.translation import EncodedRow
from actors.stages.target import ShardedModel
from actors.workers.generator import Generator
from decoding.sequence import Sequence
from jobs import generate
from jobs.driver.outcome import Exit
from tests.jobs.runs import arguments, errors, generations, prompts, write_jsonl

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


class KilledStages(Generator):
    """A generator whose first stage dies before every step in which a poisoned row is in flight."""

    async def _finish(self, rows: list[EncodedRow]) -> None:
        engine = self._loop.engine
        step, poisoned = engine.step, {s for row in rows if "poison" in row.prompt for s in row.sequences}

        def kill_and_step() -> list[Sequence]:
            if poisoned.intersection(engine.in_flight):
                assert isinstance(engine.target, ShardedModel)
                ray.kill(engine.target.pipeline.group.actors[0], no_restart=True)
            return step()

        engine.step = kill_and_step  # type: ignore[method-assign]
        await super()._finish(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_row_that_kills_stages_becomes_an_error_row_and_its_neighbours_do_not(
    text_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = prompts(12)
    rows[4] = {"id": "killer", "kind": "a", "prompt": "this is poison"}
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    assert generate.main(arguments(source, tmp_path / "whole", text_pair)) == Exit.COMPLETE
    monkeypatch.setattr(generate, "Generator", KilledStages)
    assert generate.main(arguments(source, tmp_path / "staged", text_pair, *TWO)) == Exit.COMPLETE
    (dead,) = errors(tmp_path / "staged")
    assert (dead["id"], dead["stage"], dead["error_type"]) == ("killer", "generate", "WorkerDied")
    assert tokens(tmp_path / "staged") == [row for row in tokens(tmp_path / "whole") if row[0] != dead["row_id"]]


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
