"""A worker holds the call of a unit over which its place failed, and ends it when others have the unit."""

import asyncio
import errno

import pytest

from actors.units import worker
from actors.units.ledger import Ledger
from actors.units.ledgers import LocalLedger
from actors.units.reporter import Reporter
from actors.units.unit_record import Attempt, Signal
from actors.units.unit_rows import WholeUnits
from actors.units.worker import RowKind, UnitWorker
from actors.units.workplace import Workplace
from pipeline.inputs.options import InputOptions
from pipeline.logs import LogSettings
from pipeline.run.directory import RunDirectory
from pipeline.streaming.calls import UnitCall
from tests.clock import Clock
from tests.pipeline.made_up import RUN, unit


class CutOff(WholeUnits):
    """Units on a storage that this place cannot reach."""

    async def committed(self, *_):
        raise OSError(errno.EIO, "Input/output error")


class NoRows(RowKind):
    """Rows that no test comes to."""


def test_a_call_whose_place_reaches_no_storage_gives_its_unit_back_and_ends_when_others_have_done_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker, "_LOOK_EVERY_S", 0.01)
    ledger = Ledger()
    for process in "ab":
        ledger.join(process, "node", f"actor of {process}")
    assert ledger.hand_out(unit()) is Signal.GO
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit()])
    place = Workplace(Reporter("run", LogSettings()), "node", "actor of a", gives_back=True, process="a")
    sick = UnitWorker(run, NoRows(), CutOff(InputOptions(), {}), LocalLedger(ledger), place)

    async def run_elsewhere():
        outcome = asyncio.ensure_future(sick.outcome(unit()))
        while not ledger.place_failures():
            await asyncio.sleep(0)
        assert ledger.hand_out_again(False) == UnitCall(unit())
        assert not outcome.done(), "it holds the call, so that it gets no more"
        ledger.finish(0, "b")
        return await outcome

    assert asyncio.run(run_elsewhere()) is None
    assert ledger.place_failures() == ["OSError: [Errno 5] Input/output error (over unit 0 of prompts.jsonl)"]


@pytest.mark.parametrize("is_backup", [False, True])
def test_a_process_without_models_gives_each_call_back_and_ends_it_when_the_run_stops(tmp_path, monkeypatch, is_backup):
    monkeypatch.setattr(worker, "_LOOK_EVERY_S", 0.01)
    ledger = Ledger(num_places=2)
    assert ledger.hand_out(unit()) is Signal.GO
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit()])
    place = Workplace(Reporter("run", LogSettings()), "node", "actor of a", gives_back=True, process="a")
    broken = UnitWorker(run, NoRows(), CutOff(InputOptions(), {}), LocalLedger(ledger), place)
    broken.failure = "no GPU"

    async def until_stopped():
        await broken.tell_failure("no GPU")
        outcome = asyncio.ensure_future(broken.outcome(unit(), is_backup))
        while not isinstance(again := ledger.hand_out_again(False), UnitCall):
            await asyncio.sleep(0)
        assert again == UnitCall(unit())
        ledger.stop()
        return await outcome

    assert asyncio.run(until_stopped()) is None


def test_a_refused_attempt_that_comes_again_late_does_not_get_the_unit():
    """The process has heard the refusal and waits for the unit no more; the unit would be in no hands."""
    ledger = Ledger()
    for process in "ab":
        ledger.join(process, "node", f"actor of {process}")
    ledger.hand_out(unit())
    assert isinstance(ledger.begin(0, 3, "a", "node", False, "first", "actor of a"), Attempt)
    assert ledger.begin(0, 3, "b", "node", False, "second", "actor of b") is None
    ledger.place_failed("a", "node", "disk full", report="1", unit_id=0, actor="actor of a")
    assert ledger.begin(0, 3, "b", "node", False, "second", "actor of b") is None
    assert ledger.hand_out_again(False) == UnitCall(unit())


def test_an_attempt_that_was_told_to_wait_hears_so_again_late():
    clock = Clock()
    ledger = Ledger(clock=clock)
    ledger.join("a", "node", "actor of a")
    ledger.hand_out(unit())
    ledger.place_failed("a", "node", "disk full", report="1", unit_id=0, actor="actor of a")
    assert ledger.begin(0, 3, "a", "node", False, "first", "actor of a") is Signal.WAIT
    clock.now += 100.0
    assert ledger.begin(0, 3, "a", "node", False, "first", "actor of a") is Signal.WAIT
    assert isinstance(ledger.begin(0, 3, "a", "node", False, "second", "actor of a"), Attempt)
