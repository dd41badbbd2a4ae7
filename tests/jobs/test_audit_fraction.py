"""`run.audit_fraction`: places audit each other's units, and the units of one that forges are done again elsewhere."""

import json
import re
import socket

import pyarrow.parquet as pq
import pytest
import ray

from jobs import generate
from jobs.driver import execution
from tests.jobs.faulty import forges_at_a_place
from tests.jobs.runs import content, problems

AUDITED = ("--run.audit_fraction=1", "--run.rows_per_unit=4")
EXACT = "--run.exact=required"
THREE = ("--actors.min_actors=3", "--actors.max_actors=3", "--actors.units_in_flight=1")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_what_a_place_forges_is_found_and_done_again_and_no_file_says_where(job, tmp_path, monkeypatch, ray_address):
    job.read([*({"id": f"row-{i}", "kind": "a", "prompt": f"hello {i}"} for i in range(19)), "{not json"])
    job.is_local = True
    undisturbed = job.undisturbed("--run.rows_per_unit=4")
    job.is_local = False
    monkeypatch.setattr(execution, "EngineWorker", forges_at_a_place(tmp_path / "chosen"))
    job.printed()
    code = job.generate(*AUDITED, EXACT, *THREE, "--engine.drafter=suffix", f"--run.ray_address={ray_address}")
    printed = job.printed()
    assert code == 0, printed
    assert content(job.output) == content(undisturbed)
    assert problems(job.output) == []
    audited, failed = (
        int(re.search(rf"(\d+) units? {what}", printed)[1]) for what in ("were found right", "failed their audit")
    )
    assert failed >= 1
    assert audited == 5
    host = ray.util.get_node_ip_address()
    where = rf"{re.escape(host)} wrote what the target does not write \(unit \d, row row-\d+, sample 0, token 0\)"
    assert re.search(f"a place that failed: {where}, and gets no more units", printed)

    moved = sorted((job.output / "quarantine/data").glob("*.parquet"))
    assert len(moved) == failed
    reasons = [json.loads((part.parent / f"{part.name}.json").read_text())["reason"] for part in moved]
    assert all(
        re.match(r"unit \d, row row-\d+, sample 0, token 0: it is not what the target", each) for each in reasons
    )
    footers = [pq.read_schema(part).metadata[b"dray"].decode() for part in job.output.glob("data/*.parquet")]
    assert [
        name for name in (host, socket.gethostname(), str(tmp_path)) for text in footers + reasons if name in text
    ] == []
    writers = {json.loads(text)["work"]["process"] for text in footers}
    assert (tmp_path / "chosen").read_text() not in writers


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--run.local",), "run.local is set, for a run without Ray, but run.audit_fraction asks for Ray"),
        (("--actors.max_actors=4",), "actors.min_actors is 1, and another place audits a unit; set it to 2"),
        ((*THREE, "--run.exact=any"), "run.exact is 'any', and audited texts must come out again"),
        ((*THREE, "--program.function=a.b:c"), "it has program.function, and Dray's own texts are audited"),
        (("--run.audit_fraction=1.5",), "run.audit_fraction"),
    ],
)
def test_what_cannot_be_audited_is_refused_by_name_before_anything_starts(job, flags, why):
    job.read(4)
    assert generate.main(job.command(*AUDITED, *flags)) == 2
    assert why in " ".join(job.printed().split())
    assert not job.output.exists()
