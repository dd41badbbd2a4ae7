"""An IdSet is a set of ids, only smaller."""

import pickle
import random

from pipeline.id_set import IdSet


def test_it_holds_what_a_set_holds() -> None:
    chooser = random.Random(0)
    ids = [chooser.choice([chooser.randrange(300), 65_535, 65_536, chooser.randrange(1 << 40)]) for _ in range(2000)]
    small, expected = IdSet(), set[int]()
    for id_ in ids:
        assert small.add(id_) is (id_ not in expected)
        expected.add(id_)
    assert small == expected
    assert list(small) == sorted(expected)
    assert len(small) == len(expected)
    assert all((id_ in small) is (id_ in expected) for id_ in range(400))
    assert small != expected | {401}


def test_it_travels_and_takes_a_bit_an_id() -> None:
    everything = IdSet(range(1_000_000))
    assert len(pickle.dumps(everything)) < 140_000
    assert pickle.loads(pickle.dumps(everything)) == everything


def test_what_is_no_number_is_not_in_it() -> None:
    assert "1" not in IdSet([1])
