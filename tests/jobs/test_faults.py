"""Processes that die, rows that kill their process and runs that are stopped lose nothing and repeat nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import generate
from tests.jobs.faulty import POINTS, dies_at_every_point, dies_over_poison, hangs_once
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts, wait_until, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]


@pytest.mark.slow
def test_a_worker_that_dies_at_every_point_of_a_unit_changes_nothing(
    tmp_path: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for k in range(len(POINTS)) for row in (*prompts(3), {"id": f"bad-{k}", "kind": "a"})]
    source, undisturbed, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "undisturbed", tmp_path / "out"
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    flags = ("--run.rows_per_unit=4", "--actors.units_in_flight=1")
    assert generate.main(arguments(source, undisturbed, text_pair, *flags)) == 0
    monkeypatch.setattr(generate, "Generator", dies_at_every_point(deaths))
    assert generate.main(arguments(source, output, text_pair, *flags)) == 0
    assert sorted(path.name for path in deaths.iterdir()) == sorted(f"{p} {k}" for k, p in enumerate(POINTS))
    assert content(output) == content(undisturbed)
    assert [row["row_id"] for row in errors(output)] == [row["row_id"] for row in errors(undisturbed)]
    assert problems(output) == []
    before = commits(output)
    assert generate.main(arguments(source, output, text_pair, *flags)) == 0
    assert commits(output) == before
    said = capsys.readouterr()
    assert "Nothing left to do" in said.out
    repeated = re.search(r"(\d+) attempts were repeated", said.err)
    assert repeated is not None
    assert int(repeated[1]) <= len(POINTS)


@pytest.mark.slow
def test_a_row_that_kills_its_process_becomes_an_error_row_and_its_neighbours_do_not(
    tmp_path: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = prompts(24)
    rows[7] = {"id": "killer", "kind": "a", "prompt": "this is poison"}
    source, output, healthy = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out", tmp_path / "healthy"
    flags = ("--run.rows_per_unit=12",)
    monkeypatch.setattr(generate, "Generator", dies_over_poison("poison"))
    assert generate.main(arguments(source, output, text_pair, *flags)) == 0
    (dead,) = errors(output)
    assert (dead["id"], dead["stage"], dead["error_type"]) == ("killer", "generate", "WorkerDied")
    assert problems(output) == []
    monkeypatch.undo()
    assert generate.main(arguments(source, healthy, text_pair, *flags)) == 0
    expected = [row for row in generations(healthy) if row["id"] != "killer"]
    assert [(row["id"], row["token_ids"]) for row in generations(output)] == [
        (row["id"], row["token_ids"]) for row in expected
    ]


@pytest.mark.slow
def test_an_engine_that_hangs_is_ended_and_its_units_are_done_by_another(
    tmp_path: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(20)), tmp_path / "out"
    monkeypatch.setattr(generate, "Generator", hangs_once(tmp_path))
    # Long enough for the first steps of a busy machine, short enough to wait for.
    assert generate.main(arguments(source, output, text_pair, "--run.hang_timeout_s=8")) == 0
    assert (tmp_path / "hung").exists()
    assert "worker processes died over units" in capsys.readouterr().err
    assert problems(output) == []


@pytest.mark.slow
def test_sigterm_commits_units_in_flight_and_begins_no_new_unit(
    tmp_path: Path, text_pair: Pair, ray_address: str
) -> None:
    source, undisturbed, output = write_jsonl(tmp_path / "in.jsonl", prompts(96)), tmp_path / "u", tmp_path / "out"
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=4", "--actors.units_in_flight=2")
    assert generate.main(arguments(source, undisturbed, text_pair, *slow)) == 0
    command = [sys.executable, "-m", "jobs.generate", *arguments(source, output, text_pair, *slow)]
    driver = subprocess.Popen([*command, f"--run.ray_address={ray_address}"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(commits(output)) >= 2 or driver.poll() is not None)
    at_stop = len(commits(output))
    os.kill(driver.pid, signal.SIGTERM)
    _, said = driver.communicate()
    assert driver.returncode == 3, said
    assert "stopping: what is in flight gets 120 s" in said
    assert "units to go; the same command goes on" in said
    before = commits(output)
    assert at_stop <= len(before) < 12
    assert problems_of_committed(output) == []
    assert generate.main(arguments(source, output, text_pair, *slow)) == 0
    after = commits(output)
    assert content(output) == content(undisturbed)
    assert {name: after[name] for name in before} == before


def problems_of_committed(output: Path) -> list[str]:
    return [problem for problem in problems(output) if "is missing; run again" not in problem]
