"""What a round on a GPU costs the host is counted without one."""

import pytest

pytest.importorskip("triton")

from benchmarks.host_time import lane_over, measure
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_a_round_of_128_rows_waits_once_and_gives_the_device_few_operations(is_adaptive):
    """At temperature 0.8 and top_p 0.95, over a vocabulary of 151,936: two recordings, what they read, and verdicts."""
    found = measure(128, 4, 151_936, 20, is_adaptive=is_adaptive)
    assert (found.num_waits, found.num_replays, found.num_operations) == (1, 2, 2)


def test_a_draft_that_does_not_pay_is_tried_again_though_its_rows_must_be_read_first():
    """The round under way must be read before the draft can read what it lacks; the plan is kept until then."""
    too_dear = CostTable(((1, 1e-3), (64, 1e-3)), ((1, 1.0), (64, 1.0)), 1e-4, 0.0)
    lane, recordings = lane_over(AdaptiveSchedule(too_dear, 4), 4, 1000)
    for _ in range(140):  # every 64th plan has a probe
        lane.advance(4)
    assert 1 <= recordings.num_drafts <= 4
