"""A measurement warms up before what it counts, and every figure of a table is that of the same medians."""

import pytest

from benchmarks.harness import Table, interleaved, whole
from decoding.turns import Pass


def test_the_repeat_that_warms_up_does_not_count(capsys):
    table = interleaved({"one": whole(lambda repeat: Pass(seconds=1.0, done=repeat))}, 3, "ones")
    assert [each.done for each in table.passes["one"]] == [1, 2, 3]
    assert "ones: repeat 3 of 3" in capsys.readouterr().err


def test_a_speed_and_its_ratio_agree_also_where_the_machine_was_disturbed():
    seconds = {"plain": (1.0, 2.0, 1.0), "draft": (0.5, 4.0, 0.5)}
    table = Table({name: [Pass(seconds=each, done=10) for each in those] for name, those in seconds.items()})
    assert table.ratios("draft", "plain") == [2.0, 0.5, 2.0]
    assert (table.speed("plain"), table.speed("draft")) == (10.0, pytest.approx(20.0))
