"""The measurements of `jobs.scale` measure: small ones, whose figures mean nothing."""

import argparse
from pathlib import Path

import pytest

from jobs import scale

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


def test_simulated_engines_commit_every_row(tmp_path: Path) -> None:
    given = argparse.Namespace(units_per_actor=3, rows_per_unit=4, round_s=0.01, rounds_per_row=5)
    ideal, _, num_units, _ = scale._simulate(2, given, tmp_path / "two")
    assert (round(ideal, 6), num_units) == (0.15, 6)
    assert len(list((tmp_path / "two/run/data").iterdir())) == 6
