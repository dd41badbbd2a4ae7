"""Ways take turns within a repeat."""

from collections.abc import Generator

from decoding.turns import Pass, one_repeat


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
