"""`placement: split` and a target in stages by configuration alone: the same command, the same corpus."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from actors.engine.translation import EncodedRow
from actors.stages.target import ShardedModel
from actors.workers.engine_worker import EngineWorker
from decoding.sequence import Sequence
from jobs import generate
from jobs.driver import execution
from tests.actors.sharded import kill_and_wait
from tests.decoding.heads.tiny_heads import save_perfect_pair
from tests.decoding.vocabulary.tiny_tokenizers import LETTERS, byte_level
from tests.jobs.conftest import Job
from tests.jobs.runs import content, errors, generations, problems, prompts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
SPLIT = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30", "--engine.draft_length=fixed")
TWO = ("--stages.count=2", "--stages.num_cpus=0.5")
RANKS = ("--stages.tensor_parallel=2", "--stages.num_cpus=0.5")
SAMPLING = (
    "--sampling.temperature=0.8",
    "--sampling.n=2",
    "--sampling.repetition_penalty=1.2",
    '--sampling.stop=["wo"]',
    "--sampling.max_tokens=24",
)


def tokens(output: Path) -> list[tuple[int, list[int]]]:
    return [(row["row_id"], row["token_ids"]) for row in generations(output)]


@pytest.mark.slow
def test_a_run_resumed_with_split_placement_writes_the_same_corpus(job):
    job.read(24)
    assert job.generate(*SAMPLING) == 0
    whole, first = content(job.output), "part-000000000.parquet"
    for part in job.output.glob("data/*.parquet"):
        if part.name != first:
            part.unlink()
    assert job.generate(*SAMPLING, *SPLIT) == 0
    assert content(job.output) == whole
    assert problems(job.output) == []
    assert sum(row["num_accepted_tokens"] for row in generations(job.output)[16:]) > 50
    for part in job.output.glob("data/*.parquet"):
        footer = json.loads((pq.read_schema(part).metadata or {})[b"dray"])
        assert footer["engine"]["placement"] == ("colocated" if part.name == first else "split")


@pytest.mark.slow
def test_a_run_in_stages_writes_the_same_rows_and_may_resume_with_another_placement(job):
    job.read(24)
    whole = tokens(job.undisturbed())
    assert job.generate(*TWO) == 0
    assert tokens(job.output) == whole
    assert json.loads((job.output / "run.json").read_text())["settings"]["stages"]["count"] == 2
    for flags in ((), (*TWO, *SPLIT), RANKS):
        parts = sorted(job.output.glob("data/*.parquet"))[:2]
        for path in (job.output / "_SUCCESS", job.output / "report.json", *parts):
            path.unlink(missing_ok=True)
        assert job.generate(*flags) == 0
        assert tokens(job.output) == whole
    assert sum(row["num_accepted_tokens"] for row in generations(job.output)[:16]) > 20


@pytest.mark.slow
def test_a_run_in_stages_drafts_with_a_head_and_writes_the_same_corpus(tmp_path, capsys):
    target, head = save_perfect_pair(tmp_path)
    byte_level([*LETTERS, *(f"{letter}{letter}" for letter in "abcdefgh")]).save_pretrained(target)
    job = Job(tmp_path, (target, head), capsys)
    job.read([{"id": str(row), "kind": "a", "prompt": "seven words and one"[row:]} for row in range(12)])
    flags = ("--sampling.temperature=0.8", "--engine.draft_length=fixed")
    whole = content(job.undisturbed(*flags))
    assert job.generate(*flags, *TWO) == 0
    assert content(job.output) == whole
    rows = generations(job.output)
    assert sum(row["num_accepted_tokens"] for row in rows) == sum(row["num_draft_tokens"] for row in rows) > 60


class KilledStages(EngineWorker):
    """A generator whose first stage dies before every step that would read a poisoned row or write for it."""

    async def _finish(self, rows: list[EncodedRow]) -> None:
        engine = self.engine.loop.engine
        step, poisoned = engine.step, {s for row in rows if "poison" in row.prompt.text for s in row.sequences}

        def kill_and_step() -> list[Sequence]:
            if not poisoned.isdisjoint({*engine.in_flight, *engine.up_next()}):
                assert isinstance(engine.target, ShardedModel)
                kill_and_wait(engine.target, 0)
            return step()

        engine.step = kill_and_step  # type: ignore[method-assign]
        await super()._finish(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_a_row_that_kills_stages_becomes_an_error_row(job, monkeypatch):
    rows = prompts(12)
    rows[4] = {"id": "killer", "kind": "a", "prompt": "this is poison"}
    job.read(rows)
    whole = tokens(job.undisturbed())
    monkeypatch.setattr(execution, "EngineWorker", KilledStages)
    assert job.generate(*TWO) == 0
    (dead,) = errors(job.output)
    assert (dead["id"], dead["stage"], dead["error_type"]) == ("killer", "generate", "WorkerDied")
    assert tokens(job.output) == [row for row in whole if row[0] != dead["row_id"]]


def test_a_dry_run_prints_the_placement(job):
    job.read(24)
    flags = ("--dry-run", "--actors.max_actors=4", "--placement=split", "--drafts.per_target=0.5")
    assert job.generate(*flags, "--drafts.num_cpus=2") == 0
    assert "draft actors: 1 for 2 engines, at most 2, each with 2 CPU (PACK)" in " ".join(job.printed().split())


@pytest.mark.parametrize(
    ("placement", "flags", "message"),
    [
        ("split", "--engine.drafter=suffix", "placement is 'split'.*but engine.drafter is 'suffix'"),
        ("split", "--engine.drafter=none", "placement is 'split'.*but engine.drafter is 'none'"),
        ("split", "--drafts.per_target=1.5", "drafts.per_target must be a whole number.*got 1.5"),
        ("split", "--drafts.per_target=0", "drafts.per_target must be a whole number.*got 0"),
        ("split", "--drafts.num_gpus=1.5", "drafts.num_gpus must be a whole number, or a share of one GPU, got 1.5"),
        ("split", "--drafts.timeout_s=0", "drafts.timeout_s must be above 0 seconds"),
        ("split", '--drafts.resources={"GPU":1}', "drafts.resources names 'GPU'; that is what drafts.num_gpus is for"),
        ("split", "--drafts.timeout_s=225", "timeout_s is 225.*2 lanes may wait for 450 .*half of run.hang_timeout_s"),
        ("split", "--run.hang_timeout_s=8", "timeout_s is 2.*16 lanes may wait for 32 seconds.*which is 8"),
        ("split", "--engine.num_lanes=0", "engine.num_lanes must be at least 1, got 0"),
        ("colocated", "--engine.num_lanes=4", "engine.num_lanes is 4, for engines whose draft or layers are in other"),
        ("split", "--drafts.strategy=STRICT", "drafts.strategy"),
        ("colocated", "--stages.count=3", "a model of 2 layers cannot be cut into 3 stages"),
        ("colocated", "--stages.count=0", "stages.count must be at least 1, got 0"),
        ("colocated", "--stages.tensor_parallel=3", "which is no multiple of it"),
        ("colocated", "--stages.count=2 --stages.num_gpus=1 --models.device=cpu", "num_gpus is 1; drop one of them"),
        ("colocated", "--stages.count=2 --stages.strategy=ANY", "stages.strategy"),
        ("colocated", "--stages.count=2 --stages.timeout_s=0", "stages.timeout_s must be above 0 seconds, got 0"),
        ("colocated", "--stages.count=2 --stages.start_timeout_s=600", "that replaces stages may need 960 seconds"),
    ],
)
def test_bad_values_are_refused_before_any_work(job, placement, flags, message):
    job.read(2)
    assert job.generate(f"--placement={placement}", *flags.split()) == 2
    assert re.search(message, " ".join(job.printed().split()))
    assert not job.output.exists()


def test_a_split_without_a_draft_model_is_refused(job):
    job.read(2)
    flags = [flag for flag in job.command("--placement=split") if not flag.startswith("--models.draft")]
    assert generate.main(flags) == 2
    assert "but no draft model is named" in " ".join(job.printed().split())
