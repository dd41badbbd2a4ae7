"""Ways take turns within a repeat, and every figure of a table is that of the same medians."""

from collections.abc import Generator

import pytest

from decoding.turns import Pass, Table, one_repeat


def test_ways_give_way_to_each_other_until_each_has_ended():
    order: list[str] = []

    def way(name: str, num_turns: int):
        def turns(repeat: int) -> Generator[None, None, Pass]:
            for _ in range(num_turns):
                order.append(name)
                yield
            return Pass(seconds=1.0, done=repeat)

        return turns

    found = one_repeat({"long": way("long", 3), "short": way("short", 1)}, 7)
    assert sorted(order) == ["long"] * 3 + ["short"]
    assert order.index("short") < 2, "it had its turn in the first round"
    assert (found["long"].done, found["short"].done) == (7, 7)


def test_a_speed_and_its_ratio_agree_also_where_the_machine_was_disturbed():
    seconds = {"plain": (1.0, 2.0, 1.0), "draft": (0.5, 4.0, 0.5)}
    table = Table({name: [Pass(seconds=each, done=10) for each in those] for name, those in seconds.items()})
    assert table.ratios("draft", "plain") == [2.0, 0.5, 2.0]
    assert (table.speed("plain"), table.speed("draft")) == (10.0, pytest.approx(20.0))
