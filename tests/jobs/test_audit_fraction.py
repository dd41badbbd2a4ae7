"""`run.audit_fraction`: places audit each other's units, and the units of one that forges are done again elsewhere."""

import asyncio
import json
import re
import socket
from copy import copy
from dataclasses import fields, replace
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

from actors.engine.translation import EncodedRow
from actors.rows.plain import PlainRows
from actors.units.ledgers import AuditedLedger, LocalLedger
from actors.units.unit_record import Signal
from actors.units.workplace import Workplace
from actors.workers.auditor import Auditor
from actors.workers.engine_worker import EngineWorker
from jobs import generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import execution
from jobs.driver.plan import create_run, make_plan, worker_spec
from jobs.work import generation
from pipeline.inputs.units import WorkUnit
from pipeline.logs import LogSettings
from pipeline.run.commit import Receipt
from tests.jobs.conftest import Job
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
        (
            ("--actors.max_actors=4", "--actors.initial_actors=2"),
            "actors.min_actors is 1, and another place audits a unit; set it to 2",
        ),
        ((*THREE, "--engine.backend=vllm"), "it has engine.backend 'vllm', and Dray's own texts are audited"),
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


class OutOfMemory(PlainRows):
    """Rows over each of which memory runs out."""

    async def finish(self, rows: list[EncodedRow]) -> None:
        for row in rows:
            for sequence in row.sequences:
                sequence.fail("memory ran out over this text")


@pytest.fixture
def audited(job: Job) -> tuple[WorkUnit, EngineWorker, AuditedLedger]:
    """Return a unit that is written and waits for its audit, another process than its own, and their ledger."""
    job.read(3)
    plan = make_plan(load(RunConfig, job.command(), "test"))
    run_directory, ledger, unit = create_run(plan), AuditedLedger(audit_fraction=1.0), next(plan.new_units())
    place = Workplace.beside("out", LogSettings())
    spec = replace(worker_spec(plan, run_directory), follows_drafts=False)
    worker = EngineWorker(spec, LocalLedger(ledger), workplace=place)
    assert ledger.hand_out(unit) is Signal.GO
    assert isinstance(asyncio.run(worker.outcome(unit)), Receipt)
    other = copy(worker)
    other.workplace = replace(place, process="other", actor="other")
    ledger.join("other")
    assert ledger.next_audit("other", "", "host") == unit
    return unit, other, ledger


def judge(unit: WorkUnit, worker: EngineWorker) -> None:
    """Let a process audit a unit."""
    asyncio.run(Auditor(worker, worker.engine)._audit(unit))


def test_a_unit_is_found_right_by_a_process_that_can_write_it_and_by_no_other(audited, monkeypatch):
    unit, other, ledger = audited
    monkeypatch.setattr("actors.workers.auditor._LOOK_EVERY_S", 0.0)
    rows = other.rows
    other.rows = OutOfMemory(**{each.name: getattr(rows, each.name) for each in fields(rows)})
    judge(unit, other)
    assert ledger.verdict(unit.unit_id) is Signal.WAIT, "its rows are not judged"
    other.rows = rows
    assert ledger.next_audit("other", "", "host") == unit
    judge(unit, other)
    assert ledger.verdict(unit.unit_id) is Signal.GO


def test_a_unit_whose_part_is_gone_is_done_again_and_nobody_is_named_for_it(audited):
    unit, other, ledger = audited
    other.run.part_path(unit.unit_id).remove()
    judge(unit, other)
    assert ledger.verdict(unit.unit_id) is Signal.STOP
    assert not ledger.has_ended()
    assert ledger.warnings() == []


def test_a_run_that_goes_on_says_that_what_is_committed_is_not_audited_and_an_estimate_has_none(job, monkeypatch):
    job.read(40)
    job.is_local = True
    assert job.generate("--run.rows_per_unit=20") == 0
    next(job.output.glob("data/*.parquet")).unlink()
    job.is_local, fractions = False, []

    def note(units: Any, spec: Any, plan: Any, **named: Any) -> Any:
        fractions.append(plan.config.run.audit_fraction)
        raise ValueError("this is as far as it goes")

    monkeypatch.setattr(generation, "execute", note)
    monkeypatch.setattr("jobs.work.estimate.execute", note)
    command = job.command("--run.audit_fraction=1", "--run.rows_per_unit=20", *THREE, EXACT)
    assert generate.main(command) != 0
    said = "1 unit was committed before and is not audited (run.audit_fraction); dray audit takes a sample of all"
    assert said in " ".join(job.printed().split())
    assert generate.main([*command, "--estimate=10"]) != 0
    assert fractions == [1.0, 0.0]
