"""Throughput over time adds up to the tokens, and pauses of a run are not its work."""

import pytest

from jobs.report_page.facts import Timeline
from jobs.report_page.page import time_without_speculation
from pipeline.counts import Counts


def _timeline(*units: tuple[float, float | None, int]) -> Timeline:
    timeline = Timeline()
    for ended_at, seconds, num_tokens in units:
        timeline.add(ended_at, seconds, num_tokens)
    return timeline


def test_tokens_of_units_side_by_side_add_up_in_every_stretch():
    timeline = _timeline((10, 10, 100), (10, 5, 100), (20, 10, 50))
    edges, speeds = timeline.tokens_per_second(4)
    assert list(edges) == [0, 5, 10, 15, 20]
    assert list(speeds) == pytest.approx([10, 30, 5, 5])


def test_a_pause_is_no_work_and_units_at_once_are_counted_once():
    assert _timeline((10, 10, 1), (8, 2, 1), (110, 10, 1)).working_seconds == 20
    assert _timeline((10, 10, 1), (30, None, 1)).working_seconds is None, "a part that does not say how long it took"
    assert Timeline().working_seconds is None


def test_the_time_without_speculation_is_a_bound_unless_costs_were_measured():
    counts = Counts(num_output_tokens=100, num_rounds=40, num_draft_tokens=60, num_accepted_tokens=60)
    bound = time_without_speculation(counts, [])
    assert bound is not None
    assert (bound.factor, bound.is_bound) == (2.5, True)
    measured = time_without_speculation(counts, [(0.010, 0.014, 0.016)])  # a draft of 1.5 tokens takes 15 ms
    assert measured is not None
    assert measured.factor == pytest.approx(2.5 * 10 / 15)
    assert not measured.is_bound
    assert time_without_speculation(Counts(num_output_tokens=5, num_rounds=5), []) is None
