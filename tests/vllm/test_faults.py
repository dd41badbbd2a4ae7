"""Processes that die over vLLM's work, and rows that are the reason: nothing is lost, twice, or left behind."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from actors.workers.engine_worker import EngineWorker
from jobs import generate
from jobs.driver import execution
from tests.jobs.runs import commits, errors, generations, problems, wait_until
from tests.small_disk import fill, small_disk
from tests.vllm.runs import VllmRun, good_rows, vllm_processes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture
def run(tmp_path: Path) -> VllmRun:
    """A run in an empty folder, over 60 good rows."""
    run = VllmRun(tmp_path)
    run.read(good_rows(60))
    return run


def step_fails_over(word: str) -> type[EngineWorker]:
    """Return a generator in which vLLM raises when it works on a row whose prompt has this word."""

    class Failing(EngineWorker):
        async def _finish(self, rows: list[Any]) -> None:
            engine: Any = self.engine.loop.engine
            doomed = {sequence for row in rows if word in row.prompt.text for sequence in row.sequences}
            take = engine._take

            def failing(output: Any) -> None:
                if not doomed.isdisjoint(engine.in_flight):
                    raise RuntimeError("a kernel failed")
                take(output)

            engine._take = failing
            await super()._finish(rows)

    return Failing


def test_a_row_over_which_vllm_fails_is_found_and_becomes_an_error_row(
    run: VllmRun, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = good_rows(12)
    rows[4] = {"id": "killer", "kind": "a", "prompt": "this is poison"}
    run.read(rows)
    monkeypatch.setattr(execution, "EngineWorker", step_fails_over("poison"))
    assert generate.main(run.words("generate")[3:]) == 0
    (dead,) = errors(run.output)
    assert (dead["id"], dead["stage"], dead["error_type"]) == ("killer", "generate", "WorkerDied")
    assert sorted(row["id"] for row in generations(run.output)) == sorted(
        row["id"] for row in rows if row["id"] != "killer"
    )
    assert problems(run.output) == []


def test_an_actor_that_is_killed_is_replaced_and_committed_parts_stay(run: VllmRun) -> None:
    process = run.start()
    wait_until(lambda: len(commits(run.output)) >= 1, 400)
    first = commits(run.output)
    (actor,) = vllm_processes()
    os.kill(actor, signal.SIGKILL)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert problems(run.output) == []
    assert len(generations(run.output)) == 60
    assert first.items() <= commits(run.output).items()
    wait_until(lambda: vllm_processes() == [], 60)


def test_a_driver_that_is_killed_leaves_no_process_and_the_next_one_goes_on(run: VllmRun) -> None:
    process = run.start()
    wait_until(lambda: len(commits(run.output)) >= 1, 400)
    first = commits(run.output)
    process.kill()
    process.wait(60)
    wait_until(lambda: vllm_processes() == [], 120)
    code, printed = run.generate()
    assert code == 0, printed
    assert problems(run.output) == []
    assert first.items() <= commits(run.output).items()
    wait_until(lambda: vllm_processes() == [], 60)


def test_a_full_disk_fails_the_run_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        run = VllmRun(tmp_path, disk)
        run.read(good_rows(120))
        process = run.start()
        wait_until(lambda: len(commits(run.output)) >= 1, 400)
        fill(disk / "ballast")
        printed, _ = process.communicate(timeout=600)
        assert process.returncode == 1, printed
        assert "No space left on device" in printed
        first = commits(run.output)
        assert 1 <= len(first) < 20
        (disk / "ballast").unlink()
        assert run.generate()[0] == 0
        assert problems(run.output) == []
        assert first.items() <= commits(run.output).items()
        assert len(generations(run.output)) == 120
        wait_until(lambda: vllm_processes() == [], 60)


def test_sigterm_lets_units_in_flight_finish(run: VllmRun) -> None:
    process = run.start()
    wait_until(lambda: len(commits(run.output)) >= 1, 400)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode in (0, 3), printed  # 0 if all units were in flight
    wait_until(lambda: vllm_processes() == [], 60)
    assert run.generate()[0] == 0
    assert problems(run.output) == []
