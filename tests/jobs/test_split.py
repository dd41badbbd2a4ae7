"""`placement: split` by configuration alone: the same command, the same corpus."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs import generate
from tests.jobs.runs import arguments, content, generations, problems, prompts, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]
SPLIT = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30")
SAMPLING = ("--sampling.temperature=0.8", "--sampling.n=2", '--sampling.stop=["wo"]', "--sampling.max_tokens=24")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("split") / "in.jsonl", prompts(24))


def test_a_split_run_writes_what_a_colocated_one_writes(tmp_path: Path, source: Path, text_pair: Pair) -> None:
    together, apart = tmp_path / "together", tmp_path / "apart"
    assert generate.main(arguments(source, together, text_pair, *SAMPLING)) == 0
    assert generate.main(arguments(source, apart, text_pair, *SAMPLING, *SPLIT, "--engine.draft_length=fixed")) == 0
    assert content(apart) == content(together)
    assert problems(apart) == []
    assert sum(row["num_accepted_tokens"] for row in generations(apart)) > 100
    run = json.loads((apart / "run.json").read_text())
    assert run["settings"]["placement"] == "split"
    part = next(iter(sorted(apart.glob("data/*.parquet"))))
    footer = json.loads((pq.read_schema(part).metadata or {})[b"dray"])
    assert footer["engine"]["placement"] == "split"
