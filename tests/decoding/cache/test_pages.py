"""Pages are counted: no row gets one that another has, and what rows have in common is written by neither."""

import random

import pytest

from decoding.cache.pages import Pages, blocks_of, num_pages_for

SIZE = 4


def filled(*ends: int, num_pages: int = 12) -> Pages:
    """Pages of slots whose rows have these numbers of positions, and of one slot more."""
    pages = Pages(1 + len(ends), num_pages, SIZE)
    for slot, end in enumerate(ends):
        assert pages.reserve(slot, 0, end) == []
    return pages


def test_rows_get_pages_as_they_grow_and_give_back_what_lies_behind_their_end():
    pages = filled(5, 1)
    assert [len(pages[slot]) for slot in range(3)] == [2, 1, 0]
    assert not set(pages[0]) & set(pages[1])
    first = pages[0].copy()
    assert pages.reserve(0, 5, 9) == []
    assert pages[0][:2] == first
    assert pages.reserve(0, 0, 4) == []
    assert pages[0] == first[:1]
    assert pages.num_free == 10
    assert 0 not in [*pages[0], *pages[1]], "page 0 is no row's"


def test_a_prefix_is_shared_and_only_the_page_that_a_row_goes_on_in_is_copied():
    pages = filled(11)
    donor = pages[0].copy()
    pages.share(0, 1, 10)
    assert pages.reserve(1, 10, 14) == [(donor[2], pages[1][2])]
    assert pages[1][:2] == donor[:2] == pages[0][:2]
    assert pages[0] == donor
    assert len({*pages[0], *pages[1]}) == 5
    pages.share(0, 1, 8)  # whole pages: nothing is copied
    assert pages.reserve(1, 8, 14) == []
    assert pages[1][:2] == donor[:2]


def test_a_page_is_free_once_the_last_row_has_given_it_back():
    pages = filled(8, num_pages=4)
    pages.share(0, 1, 8)
    assert pages.reserve(0, 0, 0) == []
    assert pages.num_free == 2
    assert pages.reserve(0, 0, 12) is None, "the two shared pages are the other row's"
    assert pages.reserve(1, 0, 0) == []
    assert pages.num_free == 4


def test_a_row_that_writes_its_shared_positions_anew_gets_pages_of_its_own_and_copies_no_whole_one():
    pages = filled(8)
    pages.share(0, 1, 8)
    assert pages.reserve(1, 0, 8) == [(pages[0][0], pages[1][0])]
    assert not set(pages[0]) & set(pages[1])
    pages.share(0, 1, 8)
    copied = pages.reserve(1, 5, 8)
    assert copied == [(pages[0][1], pages[1][1])]
    assert pages[0][0] == pages[1][0]


def test_a_slot_that_is_taken_over_keeps_nothing_that_another_row_would_see_change():
    pages = filled(8)
    pages.share(0, 1, 8)
    assert pages.reserve(1, 8, 9) == []
    assert pages.reserve(0, 6, 12) == [(pages[1][1], pages[0][1])]  # another row goes on behind 6 positions of slot 0


def test_what_is_not_free_changes_nothing_of_other_rows():
    pages = filled(8, 8, num_pages=5)
    before = [pages[slot].copy() for slot in range(3)]
    assert pages.reserve(0, 8, 17) is None
    assert [pages[slot] for slot in range(3)] == before
    pages.share(0, 2, 8)
    assert pages.reserve(2, 0, 8) is None
    assert [pages[slot] for slot in range(2)] == before[:2]


def test_no_page_is_lost_or_had_twice_whatever_rows_do():
    chance, pages = random.Random(1), Pages(4, 20, SIZE)
    for _ in range(2000):
        slot, other = chance.sample(range(4), 2)
        match chance.randrange(4):
            case 0:
                length = chance.randint(0, SIZE * len(pages[other]))
                pages.share(other, slot, length)
                if pages.reserve(slot, max(0, length - 1), length + chance.randint(1, 9)) is None:
                    pages.reserve(slot, 0, 0)
            case 1:
                pages.swap(slot, other)
            case _:
                end = chance.randint(0, 30)
                pages.reserve(slot, chance.randint(0, end), end)
        had = {page for each in range(4) for page in pages[each]}
        assert len(had) + pages.num_free == 20
        assert all(len({*pages[each]}) == len(pages[each]) for each in range(4))


def test_slots_that_changed_are_named_until_they_are_told():
    pages = filled(5, 1)
    assert pages.changed == {0, 1}
    pages.changed.clear()
    pages.reserve(0, 5, 8)
    assert not pages.changed
    pages.reserve(0, 5, 9)
    pages.swap(0, 2)
    assert pages.changed == {0, 2}
    assert blocks_of({0, 5, 2}, 6, 2) == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert blocks_of({6}, 7, 4) == [slice(4, 7)]


@pytest.mark.parametrize(("tokens_per_slot", "number"), [(None, 30), (300, 12), (1, 10), (256, 10), (4000, 30)])
def test_pages_are_enough_for_what_rows_take_on_average_for_each_slot_and_for_one_whole_row(tokens_per_slot, number):
    assert num_pages_for(10, 700, tokens_per_slot, 256) == number
    assert num_pages_for(1, 700, 1, 256) == 3
