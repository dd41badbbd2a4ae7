"""Progress in lines: the steps of the start, and a pace that leaves the start out."""

import pytest

from jobs.driver import progress
from jobs.driver.progress import Progress
from pipeline.counts import Counts
from tests.clock import Clock

UNIT = Counts(num_rows=10, num_generations=10, num_output_tokens=500)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def test_the_pace_and_the_time_left_count_from_the_first_engine_and_not_from_the_start(clock, capsys):
    with Progress(4, 40, "lines") as shown:
        shown.say("planned: 4 units, 40 rows")
        clock.now = 60.0
        shown.engines_up(1, 2)
        clock.now = 70.0
        shown.add(UNIT)  # 500 tokens in 10 s, after a minute of starting
        clock.now = 75.0
        shown.add(UNIT)  # too soon for another line
        clock.now = 90.0
        shown.engines_up(2, 2)  # later engines do not begin the count anew
        shown.add(UNIT)
    planned, up, first, later = capsys.readouterr().err.splitlines()
    assert planned == "planned: 4 units, 40 rows"
    assert up == "1 of 2 engines up after 1:00"
    assert first.startswith("first rows after 1:10: 1/4 units  10/40 rows  10 texts written  500 tokens  50 tokens/s")
    assert first.endswith("0:30 left")
    assert later.startswith("3/4 units  30/40 rows  30 texts written  1,500 tokens  50 tokens/s")
    assert later.endswith("0:10 left")


def test_no_progress_prints_nothing(capsys):
    with Progress(1, 10, "none") as shown:
        shown.say("planned")
        shown.engines_up(1, 1)
        shown.add(UNIT)
    assert capsys.readouterr() == ("", "")


def test_what_engines_write_is_shown_before_a_unit_is_committed(clock, capsys):
    with Progress(1, 10, "lines") as shown:
        shown.engines_up(1, 1)
        for seconds in range(2, 32, 2):
            clock.now = float(seconds)
            shown.written(seconds // 10, 20 * seconds)
    _, first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("0/1 units  0/10 rows  1 texts written  200 tokens  20 tokens/s")
    assert last.startswith("0/1 units  0/10 rows  3 texts written  600 tokens  20 tokens/s")
    assert last.endswith("? left")
