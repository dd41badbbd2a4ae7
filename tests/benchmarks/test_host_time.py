"""What a round on a GPU costs the host is counted without one."""

import pytest

pytest.importorskip("triton")

from benchmarks.host_time import measure


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_a_round_of_128_rows_waits_once_and_gives_the_device_few_operations(is_adaptive):
    """At temperature 0.8 and top_p 0.95, over a vocabulary of 151,936: two recordings, and what feeds them."""
    found = measure(128, 4, 151_936, 20, is_adaptive=is_adaptive)
    assert found.num_waits <= 1
    assert found.num_replays <= 2
    assert found.num_operations <= 60
