"""`placement: split` by configuration alone: the same command, the same corpus."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs import generate
from tests.jobs.runs import arguments, content, generations, problems, prompts, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]
SPLIT = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30", "--engine.draft_length=fixed")
SAMPLING = (
    "--sampling.temperature=0.8",
    "--sampling.n=2",
    "--sampling.repetition_penalty=1.2",
    '--sampling.stop=["wo"]',
    "--sampling.max_tokens=24",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("split") / "in.jsonl", prompts(24))


@pytest.mark.slow
def test_a_run_resumed_with_split_placement_writes_the_same_corpus(
    tmp_path: Path, source: Path, text_pair: Pair
) -> None:
    output = tmp_path / "out"
    assert generate.main(arguments(source, output, text_pair, *SAMPLING)) == 0
    whole, first = content(output), "part-000000000.parquet"
    for part in output.glob("data/*.parquet"):
        if part.name != first:
            part.unlink()
    assert generate.main(arguments(source, output, text_pair, *SAMPLING, *SPLIT)) == 0
    assert content(output) == whole
    assert problems(output) == []
    assert sum(row["num_accepted_tokens"] for row in generations(output)[16:]) > 50
    for part in output.glob("data/*.parquet"):
        footer = json.loads((pq.read_schema(part).metadata or {})[b"dray"])
        assert footer["engine"]["placement"] == ("colocated" if part.name == first else "split")


def test_a_dry_run_prints_the_placement(
    tmp_path: Path, source: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--dry-run", "--actors.max_actors=4", "--placement=split", "--drafts.per_target=0.5")
    assert generate.main(arguments(source, tmp_path / "out", text_pair, *flags, "--drafts.num_cpus=2")) == 0
    assert "draft actors: 1 for 2 engines, at most 2, each with 2 CPU (PACK)" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--engine.drafter=suffix", "placement is 'split'.*but engine.drafter is 'suffix'"),
        ("--engine.drafter=none", "placement is 'split'.*but engine.drafter is 'none'"),
        ("--drafts.per_target=1.5", "drafts.per_target must be a whole number.*got 1.5"),
        ("--drafts.per_target=0", "drafts.per_target must be a whole number.*got 0"),
        ("--drafts.num_gpus=1.5", "drafts.num_gpus must be a whole number, or a share of one GPU, got 1.5"),
        ("--drafts.timeout_s=0", "drafts.timeout_s must be above 0 seconds"),
        ('--drafts.resources={"GPU": 1}', "drafts.resources names 'GPU'; that is what drafts.num_gpus is for"),
        ("--drafts.timeout_s=225", "drafts.timeout_s is 225.*2 lanes may wait for 450 .*half of run.hang_timeout_s"),
        ("--run.hang_timeout_s=8", "drafts.timeout_s is 2.*may wait for 4 seconds.*hang_timeout_s, which is 8"),
        ("--drafts.strategy=STRICT", "drafts.strategy"),
    ],
)
def test_bad_values_are_refused(
    tmp_path: Path, source: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str], flag: str, message: str
) -> None:
    assert generate.main(arguments(source, tmp_path / "out", text_pair, "--placement=split", flag)) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_a_split_without_a_draft_model_is_refused(
    tmp_path: Path, source: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [a for a in arguments(source, tmp_path / "out", text_pair) if not a.startswith("--models.draft")]
    assert generate.main([*flags, "--placement=split"]) == 2
    assert "but no draft model is named" in " ".join(capsys.readouterr().err.split())
