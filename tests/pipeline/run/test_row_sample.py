"""A sample of rows is the same everywhere, and spread over the whole input."""

import pytest

from pipeline.run.row_sample import NO_ROWS, RowSample


@pytest.mark.parametrize(("num_rows", "num_wanted"), [(1, 50), (50, 50), (51, 50), (99, 50), (300, 50), (1000, 7)])
def test_a_sample_has_as_many_rows_as_are_wanted_and_each_knows_that_it_is_one(num_rows, num_wanted):
    sample = RowSample(num_rows, num_wanted)
    rows = list(sample)
    assert len(rows) == len(set(rows)) == min(num_rows, num_wanted)
    assert rows == [row for row in range(num_rows) if row in sample]


def test_every_stretch_of_the_input_is_in_the_sample_and_not_by_a_period():
    rows = list(RowSample(5000, 50))
    assert [row // 100 for row in rows] == list(range(50))
    assert len({row % 10 for row in rows}) == 10


def test_a_sample_of_a_billion_rows_is_named_without_listing_them():
    sample = RowSample(10**9, 50)
    assert all(row in sample for row in sample)
    assert RowSample(10**9, 10**9).__contains__(123_456_789)


def test_no_row_is_in_the_empty_sample():
    assert list(NO_ROWS) == []
    assert 0 not in NO_ROWS
