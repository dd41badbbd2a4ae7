"""An IdSet is a set of ids, only smaller."""

import pickle
import random

from pipeline.id_set import IdSet


def test_an_id_set_equals_a_set_of_the_same_ids():
    chooser = random.Random(0)
    ids = [chooser.choice([chooser.randrange(300), 65_535, 65_536, chooser.randrange(1 << 40)]) for _ in range(2000)]
    small, expected = IdSet(), set[int]()
    for id_ in ids:
        assert small.add(id_) is (id_ not in expected)
        expected.add(id_)
    for id_ in (*ids[::3], *ids[::3], 1 << 50):
        small.discard(id_)
        expected.discard(id_)
    assert small == expected
    assert list(small) == sorted(expected)
    assert len(small) == len(expected)
    assert all((id_ in small) is (id_ in expected) for id_ in range(400))
    assert small != expected | {401}


def test_an_id_set_can_be_pickled_and_takes_one_bit_for_each_id():
    everything = IdSet(range(1_000_000))
    assert len(pickle.dumps(everything)) < 140_000
    assert pickle.loads(pickle.dumps(everything)) == everything


def test_an_id_set_contains_numbers_only():
    assert "1" not in IdSet([1])
