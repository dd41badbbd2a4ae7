"""The measurements of `benchmarks.scale` measure: small ones, whose figures mean nothing."""

from pathlib import Path

import pytest

from benchmarks.scale.__main__ import print_spreads
from benchmarks.scale.actors import Spread, simulate
from benchmarks.scale.made_run import make_run
from benchmarks.scale.store import CREDENTIALS, late_store
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_simulated_engines_commit_every_row(tmp_path: Path) -> None:
    spread = simulate(2, tmp_path / "two", units_per_actor=3, rows_per_unit=4, round_s=0.01, rounds_per_row=5)
    assert spread.ideal_seconds == pytest.approx(0.15)
    assert spread.num_units == 6
    assert len(list((tmp_path / "two/run/data").iterdir())) == 6


def test_what_an_actor_lost_is_told_beside_the_ideal(capsys: pytest.CaptureFixture[str]) -> None:
    print_spreads([Spread(2, 4, 5.0, 4.0)])
    assert "ideal 4.00 s, efficiency 0.800, 500 ms of an actor lost a unit" in capsys.readouterr().out


def test_a_made_run_is_sound_and_the_late_store_shows_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, 1003, 2)  # more files than a page of a listing has
    found = check_run(run)
    assert found.problems == []
    assert (found.counts.num_rows, found.counts.num_errors) == (2006, 3)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with late_store(tmp_path, 1) as query:
        stored = RunDirectory.open(f"s3://bucket/run?{query}")
        assert check_run(stored) == found
        stored.mark_success()
        assert run.is_success()
        stored.unmark_success()
        assert not run.is_success()
