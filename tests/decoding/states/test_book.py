"""A kept state is that of the tokens which the book says, whatever rows did before. Entries hold tokens here."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.states.book import NUM_SHARED_ENTRIES, StateBook
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import loaded

NUM_SLOTS, NUM_RECENT = 3, 3
_SLOTS = st.integers(0, NUM_SLOTS - 1)
_STEPS = st.one_of(
    st.tuples(
        st.just("extend"),
        _SLOTS,
        st.integers(0, 99),
        st.lists(st.integers(0, 1), min_size=1, max_size=6),
        st.booleans(),
    ),
    st.tuples(st.just("copy"), _SLOTS, _SLOTS, st.integers(0, 99)),
    st.tuples(st.just("swap"), _SLOTS, _SLOTS),
    st.tuples(st.just("forget"), _SLOTS),
)


class Rows:
    """Slots whose states are the tokens that made them: an entry holds the text of the row that wrote it."""

    def __init__(self) -> None:
        self.book = StateBook(NUM_SLOTS, NUM_RECENT)
        self.entries: dict[int, tuple[int, ...]] = {}
        self.texts: list[tuple[int, ...]] = [()] * NUM_SLOTS

    def check(self) -> None:
        for slot, text in enumerate(self.texts):
            for length in self.book.lengths(slot):
                assert self.entries[self.book.entry(slot, length)] == text[:length]
        assert len({self.book.entry(s, n) for s in range(NUM_SLOTS) for n in self.book.lengths(s)}) == sum(
            len(self.book.lengths(slot)) for slot in range(NUM_SLOTS)
        ), "two states have one entry"

    def extend(self, slot: int, most: int, tokens: list[int], keeps_each: bool) -> None:
        start = self.book.longest(slot, most)
        read, written = self.book.extend(slot, start, len(tokens), keeps_each=keeps_each)
        text = () if read is None else self.entries[read]
        assert text == self.texts[slot][:start]
        for token, entry in zip(tokens, written, strict=True):
            text = (*text, token)
            if entry is not None:
                assert entry < self.book.num_entries
                self.entries[entry] = text
        self.texts[slot] = text
        assert start + len(tokens) in self.book.lengths(slot)

    def copy(self, source: int, target: int, most: int) -> None:
        if source == target:
            return
        length = self.book.longest(source, most)
        copied = self.book.copy(source, target, length)
        if copied is not None:
            self.entries[copied[1]] = self.entries[copied[0]]
        self.texts[target] = self.texts[source][:length]

    def swap(self, first: int, second: int) -> None:
        self.book.swap(first, second)
        self.texts[first], self.texts[second] = self.texts[second], self.texts[first]

    def forget(self, slot: int) -> None:
        self.book.forget(slot)
        assert not self.book.lengths(slot)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEPS, max_size=30))
def test_a_kept_state_is_always_that_of_the_rows_first_tokens(steps):
    rows = Rows()
    for name, *arguments in steps:
        getattr(rows, name)(*arguments)
        rows.check()


def test_a_row_can_go_on_behind_each_verified_token_and_behind_the_ends_of_what_was_read():
    book = StateBook(1, 5)
    book.extend(0, 0, 20, keeps_each=False)
    book.extend(0, 20, 4, keeps_each=True)
    assert book.lengths(0) == [20, 21, 22, 23, 24]
    book.extend(0, 22, 3, keeps_each=True)  # two of four tokens were rejected
    assert book.lengths(0) == [20, 21, 22, 23, 24, 25]
    assert [book.longest(0, length) for length in (19, 20, 24, 99)] == [0, 20, 24, 25]


def test_states_for_rows_that_begin_alike_are_spread_over_a_long_text():
    book = StateBook(1, 2)
    for start in range(0, 100, 10):
        book.extend(0, start, 10, keeps_each=False)
    lengths = book.lengths(0)
    assert len(lengths) == NUM_SHARED_ENTRIES
    assert lengths[-1] == 100
    assert lengths[0] < 50


def test_a_row_cannot_go_on_where_no_state_was_kept():
    book = StateBook(2, 3)
    book.extend(0, 0, 9, keeps_each=False)
    with pytest.raises(AssertionError, match="no state is kept behind 5 tokens"):
        book.extend(0, 5, 1, keeps_each=True)
    with pytest.raises(AssertionError, match="no state is kept behind 8 tokens"):
        book.copy(0, 1, 8)


@pytest.mark.parametrize("is_prompt", [False, True])
@pytest.mark.parametrize("failing", [0, 3])
def test_a_forward_that_raises_leaves_no_state_behind_and_its_row_goes_on_from_those_before(
    failing, is_prompt, tmp_path, monkeypatch
):
    def out_of_memory(*_, **__):
        raise torch.OutOfMemoryError("planted")

    def logits(starts, tokens):
        return model.forward(starts, torch.tensor([tokens]), torch.arange(len(tokens))[None], slots=[1])

    model = loaded(family_network("gated delta", STATES), tmp_path)
    model.allocate(2, 40)
    model.prefill([1], [[1, 2, 3, 4, 5]])
    expected = logits([5], [6, 7, 8, 9])
    junk = torch.tensor([[9] * 10])
    with monkeypatch.context() as planted:
        planted.setattr(model.network.model.layers[failing].mlp, "forward", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            model.forward([6], junk, junk[:, :0], slots=[1], is_prompt=is_prompt)
    assert model.cache.longest(1, 40) == 6
    torch.testing.assert_close(logits([5], [6, 7, 8, 9]), expected, rtol=1e-4, atol=1e-5)
