"""Processes that die, slow actors, rows that kill their process and runs that are stopped lose and repeat nothing."""

import errno
import re
import signal

import pytest

from actors.errors import DeviceFault
from jobs.driver import execution
from tests.jobs.faulty import POINTS, dies_at_every_point, dies_over, fails_at_a_place, hangs_once, never_finishes
from tests.jobs.runs import commits, content, errors, generations, problems, prompts, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_address")]


def test_a_worker_that_dies_at_every_point_of_a_unit_changes_nothing(job, tmp_path, monkeypatch):
    job.read([row for k in range(len(POINTS)) for row in (*prompts(3), {"id": f"bad-{k}", "kind": "a"})])
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    flags = ("--run.rows_per_unit=4", "--actors.units_in_flight=1")
    undisturbed = job.undisturbed(*flags)
    monkeypatch.setattr(execution, "EngineWorker", dies_at_every_point(deaths))
    assert job.generate(*flags) == 0
    assert sorted(path.name for path in deaths.iterdir()) == sorted(f"{p} {k}" for k, p in enumerate(POINTS))
    assert content(job.output) == content(undisturbed)
    assert [row["row_id"] for row in errors(job.output)] == [row["row_id"] for row in errors(undisturbed)]
    assert problems(job.output) == []
    before = commits(job.output)
    assert job.generate(*flags) == 0
    assert commits(job.output) == before
    said = job.printed()
    assert "Nothing left to do" in said
    repeated = re.search(r"(\d+) attempts were repeated", said)
    assert repeated is not None
    assert int(repeated[1]) <= len(POINTS)


def test_only_a_row_that_kills_its_process_becomes_an_error_row(job, monkeypatch):
    rows = prompts(24)
    rows[7] = {"id": "killer", "kind": "a", "prompt": "this is poison"}
    job.read(rows)
    healthy = job.undisturbed("--run.rows_per_unit=12")
    monkeypatch.setattr(execution, "EngineWorker", dies_over("poison"))
    assert job.generate("--run.rows_per_unit=12") == 0
    (dead,) = errors(job.output)
    assert (dead["id"], dead["stage"], dead["error_type"]) == ("killer", "generate", "WorkerDied")
    assert problems(job.output) == []
    expected = [(row["id"], row["token_ids"]) for row in generations(healthy) if row["id"] != "killer"]
    assert [(row["id"], row["token_ids"]) for row in generations(job.output)] == expected


def test_an_engine_that_hangs_is_ended_and_its_units_are_done_by_another(job, tmp_path, monkeypatch):
    job.read(20)
    monkeypatch.setattr(execution, "EngineWorker", hangs_once(tmp_path))
    # Long enough for the first steps of a busy machine, short enough to wait for.
    assert job.generate("--run.hang_timeout_s=8") == 0
    assert (tmp_path / "hung").exists()
    assert "worker processes died over units" in job.printed()
    assert problems(job.output) == []


def test_a_run_ends_without_its_slow_actor_as_idle_ones_do_its_units_once(job, tmp_path, plain_run, monkeypatch):
    job.source = plain_run / "in.jsonl"
    monkeypatch.setattr(execution, "EngineWorker", never_finishes(tmp_path))
    two = ("--actors.min_actors=2", "--actors.max_actors=2", "--run.no_progress_timeout_s=100")
    assert job.generate(*two) == 0
    said = job.printed()
    assert "worker processes died" not in said
    assert "attempts were repeated" not in said
    assert "units were also begun by idle actors" in said
    assert (tmp_path / "slow").exists()
    assert content(job.output) == content(plain_run / "out")
    assert problems(job.output) == []
    before = commits(job.output)
    assert len(before) == 4
    assert job.generate(*two) == 0
    assert "Nothing left to do" in job.printed()
    assert commits(job.output) == before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "OSError: [Errno 30] Read-only file system"),
        (DeviceFault("CUDA error: an illegal memory access was encountered"), "DeviceFault: CUDA error: an illegal"),
    ],
    ids=["storage", "device"],
)
def test_a_place_that_fails_gives_its_units_to_the_others(job, tmp_path, plain_run, monkeypatch, error, said):
    job.source = plain_run / "in.jsonl"
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(execution, "EngineWorker", fails_at_a_place(places, error))
    assert job.generate("--actors.min_actors=2", "--actors.max_actors=2", "--actors.units_in_flight=1") == 0
    assert len(list(places.iterdir())) == 1
    printed = job.printed()
    assert re.search(r"[1-9]\d* units were given back by places that failed or were drained", printed), printed
    assert said in printed
    assert content(job.output) == content(plain_run / "out")
    assert problems(job.output) == []


def test_a_run_without_a_place_that_can_write_ends_with_the_cause_and_goes_on_later(
    job, tmp_path, plain_run, monkeypatch
):
    job.source = plain_run / "in.jsonl"
    places = tmp_path / "places"
    places.mkdir()
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(execution, "EngineWorker", fails_at_a_place(places, full, num_places=8))
        assert job.generate("--run.places_timeout_s=1") == 1
    assert re.search(r"error: no place was left for units for .*No space left on device", job.printed())
    assert job.generate() == 0
    assert content(job.output) == content(plain_run / "out")


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_commits_units_in_flight_and_begins_no_new_unit(job, ray_address, asked):
    job.read(96)
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=4", "--actors.units_in_flight=2")
    undisturbed = job.undisturbed(*slow)
    driver = job.start(ray_address, *slow)
    wait_until(lambda: len(commits(job.output)) >= 2 or driver.poll() is not None)
    at_stop = len(commits(job.output))
    driver.send_signal(asked)
    _, said = driver.communicate()
    assert driver.returncode == 3, said
    assert "stopping: what is in flight gets 120 s" in said
    assert "units to go; the same command goes on" in said
    before = commits(job.output)
    assert at_stop <= len(before) < 12
    assert [problem for problem in problems(job.output) if "is missing; run again" not in problem] == []
    assert job.generate(*slow) == 0
    after = commits(job.output)
    assert content(job.output) == content(undisturbed)
    assert {name: after[name] for name in before} == before
