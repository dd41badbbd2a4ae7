"""The overhead is a line that measured rounds correct near their own shapes."""

import pytest

from decoding.pace.cost_table import CostTable, Overhead

COSTS = CostTable(((1, 1.0), (144, 2.0)), ((1, 0.1), (16, 0.1)), round_seconds=0.01, position_seconds=0.001)


def line(overhead: Overhead, positions: int) -> float:
    return overhead.costs.round_seconds + positions * overhead.costs.position_seconds


def test_rounds_of_different_shapes_give_another_line():
    overhead = Overhead(COSTS, 16, 144)
    for _ in range(200):
        for positions in (16, 80, 144):
            overhead.observe(positions, 0.02 + positions * 0.002)
    assert overhead.costs.round_seconds == pytest.approx(0.02, rel=0.3)
    assert overhead.costs.position_seconds == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize("factor", [0.6, 3.0])
def test_rounds_of_one_shape_correct_the_line_there_more_than_elsewhere(factor):
    overhead = Overhead(COSTS, 16, 144)
    for _ in range(500):
        overhead.observe(16, factor * 0.026)
    assert line(overhead, 16) == pytest.approx(factor * 0.026, rel=0.25)
    assert line(overhead, 144) == pytest.approx(0.154, rel=0.25)


def test_a_round_disturbed_by_other_work_changes_little():
    overhead = Overhead(COSTS, 16, 144)
    for _ in range(100):
        overhead.observe(16, 0.026)
    overhead.observe(16, 100.0)
    assert line(overhead, 16) < 1.2 * 0.026


def test_neither_figure_falls_below_zero():
    for cheap_wide in (True, False):
        overhead = Overhead(COSTS, 16, 144)
        for _ in range(500):
            overhead.observe(16, 0.0 if not cheap_wide else 0.1)
            overhead.observe(144, 0.3 if not cheap_wide else 0.0)
        assert overhead.costs.round_seconds >= 0
        assert overhead.costs.position_seconds >= 0


def test_what_each_round_with_drafts_takes_does_not_make_long_drafts_look_dear():
    overhead = Overhead(COSTS, 16, 144)
    for _ in range(300):
        overhead.observe(32, 0.042 + 0.03, drafts=True)
        overhead.observe(16, 0.026)
    costs = overhead.costs
    assert costs.draft_round_seconds == pytest.approx(0.03, rel=0.15)
    assert line(overhead, 144) == pytest.approx(0.154, rel=0.1)
    assert costs.of_round(16, 4) - costs.of_round(16, 3) == pytest.approx(
        COSTS.of_round(16, 4) - COSTS.of_round(16, 3), rel=0.1
    )
