"""Slots keep what was written where it was written, and give back exactly that."""

import gc
import weakref

import pytest
import torch

from decoding.cache.kv_cache import LENGTH_BUCKET, KVCache
from decoding.cache.plan import Packing
from tests.decoding.tiny import stored

HEADS, SIZE = 2, 3


def _write(cache: KVCache, starts: list[int], num_tokens: int, slots: list[int] | None, value: float):
    """Keys are `value` + position, values the negative; what the model would see back."""
    positions = _plan(cache, starts, num_tokens, slots)
    states = (value + positions).float()[:, None, :, None].expand(-1, HEADS, -1, SIZE)
    return cache.update(states, -states, 0)


def _plan(cache: KVCache, starts: list[int], num_tokens: int, slots: list[int] | None = None) -> torch.Tensor:
    positions = torch.tensor(starts)[:, None] + torch.arange(num_tokens)
    cache.plan(None if slots is None else torch.tensor(slots), positions, max(starts) + num_tokens, None)
    return positions


def _keys(cache: KVCache, slot: int, length: int) -> list[float]:
    return stored(cache, slot, length)[0][0][:, 0, 0].tolist()


def test_rows_are_written_at_their_own_starts_into_their_own_slots():
    cache = KVCache(4, 20)
    _write(cache, [0, 0], 5, [3, 1], 100)
    _write(cache, [2, 4], 2, [1, 3], 200)
    assert _keys(cache, 1, 5) == [100, 101, 202, 203, 104]
    assert _keys(cache, 3, 6) == [100, 101, 102, 103, 204, 205]
    assert _keys(cache, 0, 20) == _keys(cache, 2, 20) == [0] * 20


@pytest.mark.parametrize("slots", [None, [0, 1], [1, 0]])
def test_a_forward_sees_its_rows_in_its_own_order(slots):
    cache = KVCache(3, 20)
    keys, values = _write(cache, [0, 3], 2, slots, 100)
    assert keys.shape == (2, HEADS, 20, SIZE)
    assert keys[0, 0, :2, 0].tolist() == [100, 101]
    assert keys[1, 0, 3:5, 0].tolist() == [103, 104]
    assert torch.equal(values, -keys)


def test_what_is_written_past_the_end_is_lost_and_changes_no_other_slot():
    cache = KVCache(2, 8)
    _write(cache, [0, 0], 8, None, 100)
    _write(cache, [6, 0], 5, None, 200)
    assert _keys(cache, 0, 8) == [100, 101, 102, 103, 104, 105, 206, 207]
    assert _keys(cache, 1, 8) == [200, 201, 202, 203, 204, 105, 106, 107]


def test_visible_positions_come_in_buckets_and_end_with_the_cache():
    cache = KVCache(1, 200)
    for start, num_tokens, expected in [(0, 1, 1), (0, 64, 1), (0, 65, 2), (63, 1, 1), (64, 1, 2), (127, 2, 3)]:
        _plan(cache, [start], num_tokens)
        assert cache.get_mask_sizes(num_tokens) == (expected * LENGTH_BUCKET, 0)
        assert cache.get_seq_length() + num_tokens == expected * LENGTH_BUCKET
    _plan(cache, [199], 1)
    assert cache.get_mask_sizes(1)[0] == 200


def test_copying_a_slot_copies_exactly_its_length():
    cache = KVCache(2, 10)
    _write(cache, [0, 0], 6, None, 100)
    _write(cache, [0], 6, [1], 300)
    cache.copy(1, 0, 4)
    assert _keys(cache, 0, 6) == [300, 301, 302, 303, 104, 105]
    assert _keys(cache, 1, 6) == [300, 301, 302, 303, 304, 305]


@pytest.mark.parametrize(
    ("lengths", "first", "second"),
    [
        ((4, 2), [300, 301, 102, 103], [100, 101, 102, 103]),
        ((1, 3), [300, 301, 302, 103], [100, 301, 302, 303]),
        ((3, 0), [100, 101, 102, 103], [100, 101, 102, 303]),
        ((0, 0), [100, 101, 102, 103], [300, 301, 302, 303]),
    ],
)
def test_swapping_two_slots_exchanges_exactly_their_lengths(lengths, first, second):
    cache = KVCache(3, 10)
    _write(cache, [0, 0], 4, [0, 1], 100)
    _write(cache, [0], 4, [2], 300)
    cache.swap(0, 2, *lengths)
    assert (_keys(cache, 0, 4), _keys(cache, 2, 4)) == (first, second)
    assert stored(cache, 0, 4)[0][1][:, 0, 0].tolist() == [-key for key in first], "values go with their keys"
    assert _keys(cache, 1, 4) == [100, 101, 102, 103]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_slot_is_finite_up_to_its_first_value_that_is_not(value):
    cache = KVCache(2, 10)
    assert cache.is_finite(0, 10), "nothing was ever written"
    _write(cache, [0, 0], 6, None, 1e4)
    _write(cache, [4], 1, [1], value)
    assert cache.is_finite(0, 6)
    assert cache.is_finite(1, 4)
    assert not cache.is_finite(1, 5)


def test_zeroing_a_slot_clears_it_to_its_last_position_and_no_other():
    cache = KVCache(3, 10)
    _write(cache, [0, 0, 0], 14, None, float("nan"))
    _write(cache, [0, 0], 10, [0, 2], 100)
    cache.zero(1)
    for layer in cache.layers:
        for each in layer.stored():
            assert (each[1] == 0).all()
    assert _keys(cache, 0, 2) == _keys(cache, 2, 2) == [100, 101]


def test_a_packing_takes_a_rectangle_apart_and_puts_it_together():
    packing = Packing.of([2, 4, 1], torch.device("cpu"))
    packed = torch.arange(12)[packing.packed_N]
    assert packed.tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert packed[packing.unpacked_BT].tolist() == [[0, 1, 1, 1], [4, 5, 6, 7], [8, 8, 8, 8]]
    assert Packing.of([3, 3], torch.device("cpu")) is None, "rows of one length are not packed"


def test_each_row_has_its_own_query_offset():
    cache = KVCache(2, 10)
    _plan(cache, [4, 7], 2)
    assert cache.get_query_offset().flatten().tolist() == [4, 5, 7, 8]
    assert cache.get_query_offset().shape == (2, 1, 2, 1)


def test_the_bytes_reserved_are_counted():
    cache = KVCache(2, 9)
    assert cache.num_bytes == 0
    _write(cache, [0], 1, [0], 1)
    assert cache.num_bytes == 2 * 2 * 10 * HEADS * SIZE * 4


def test_memory_of_a_cache_is_freed_with_its_last_user(models):
    """The garbage collector would be too late: the next cache may not fit beside this one."""
    gc.disable()
    try:
        model = models.target.share()
        model.allocate(2, 16)
        model.prefill([0], [[1, 2, 3]])
        cache = weakref.ref(model.cache)
        model.release()
        assert cache() is None
    finally:
        gc.enable()
