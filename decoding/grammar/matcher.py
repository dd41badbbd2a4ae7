"""Matcher: where one sequence stands in its grammar, and which tokens may come next.

A mask is a pure function of the grammar, the committed output tokens and the drafted tokens before the position. What
is kept only saves time: the reader goes on from the tokens that it was asked about last, and keeps the masks on the
way. So it needs no care when a draft is rejected or a row is read again, and a new matcher for the same tokens answers
the same.

Shapes: R sequences, J positions, W words of 32 token ids.
"""

from collections.abc import Sequence as Seq
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.grammar.definition import Compiled, in_one_line
from decoding.grammar.likely_text import LikelyText
from decoding.grammar.reader import MAX_REASON, Reader
from decoding.grammar.token_table import Mask, TokenTable, Words

_SOON = 4  # output tokens behind the last masks: a target that strays there strays again
_MOST_ASTRAY = 16  # output tokens for which masks come first
CANNOT_FOLLOW = "the grammar cannot be followed further"
NOTHING_FITS = "no token of the vocabulary continues the text as the grammar asks"


class Matcher:
    """The grammar of one sequence, and how far its tokens have come in it."""

    def __init__(self, table: TokenTable, reader: Reader, likely: LikelyText | None = None) -> None:
        """Begin before the first token, with a reader that has read nothing.

        `likely` guesses what is written where white space is free.
        """
        self._table, self._reader, self._likely = table, reader, likely
        self.masks_first_until = 0  # up to this many output tokens masks come before picks (`note_stray`)
        self._num_astray = 0  # tokens for which they did the last time
        self.dead_end: str | None = None  # why the mask that was asked for last has no token; None if it has some

    def mask(self, committed: Seq[int], drafted: Seq[int] = ()) -> Mask | None:
        """Return which tokens may follow the committed output tokens and the drafted ones.

        None says that nothing can follow, so that the position has no meaning: a drafted token is an end token, or one
        that the grammar does not allow. A mask without a single token says that the grammar is at a dead end, or too
        complex there; `dead_end` says which.
        """
        reader, self.dead_end = self._reader, None
        if not self._table.eos_token_ids.isdisjoint([*committed[reader.num_committed :], *drafted]):
            return None
        if not reader.commit(committed):
            if drafted:
                return None
            why = f"its first {len(committed)} output tokens are not what the grammar allows"
            return self._nothing(f"the grammar fails: {reader.error}" if reader.error else why)
        num_tokens = len(committed) + len(drafted)
        if reader.has_read(drafted) and num_tokens in reader.masks:
            return reader.masks[num_tokens]
        if not reader.read(drafted):
            return self._nothing(f"the grammar fails: {reader.error}") if reader.error else None
        return self._compute(num_tokens)

    def write_masks(self, committed: Seq[int], drafted: Seq[int], addresses: Seq[int]) -> bool:
        """Write the masks behind the committed output tokens, and behind each drafted one, to these addresses.

        There is room for `TokenTable.num_tokenizer_words` at each. Nothing is written where `mask` returns None. Return
        False if llguidance meets an error, or a limit: then nothing is known of what was written.
        """
        if not self._commit(committed):
            return False
        num_bytes = Words.itemsize * self._table.num_tokenizer_words
        return self._reader.write_masks(drafted, self._table.eos_token_ids, addresses, num_bytes)

    def allows(self, committed: Seq[int], new: Seq[int]) -> bool:
        """Return whether the masks behind the committed output tokens have each of these tokens, one behind the other.

        That takes a fraction of the time of the masks.
        """
        return self.num_allowed(committed, new) == len(new)

    def num_allowed(self, committed: Seq[int], new: Seq[int]) -> int:
        """Return how many of these tokens the masks behind the committed output tokens have, one behind the other.

        Behind a token that ends the text none is allowed.
        """
        if not self._commit(committed):
            return 0
        num_allowed = self._reader.read_on(new, self._table.eos_token_ids)
        while num_allowed < len(new) and self._may_follow(new[:num_allowed], new[num_allowed]):
            num_allowed += 1
        return num_allowed

    def upto_end(self, new: list[int]) -> list[int]:
        """Return these tokens up to the first one that ends the text."""
        ends = self._table.eos_token_ids
        if ends.isdisjoint(new):
            return new
        return new[: 1 + next(place for place, token_id in enumerate(new) if token_id in ends)]

    def forced(self, committed: Seq[int]) -> list[int]:
        """Return the tokens of the text that alone may follow the committed output tokens; often there is none.

        There may be more of it than is returned. An end token is not returned.
        """
        forced = (self._commit(committed) and self._forced_behind(())) or []
        return list(takewhile(lambda token_id: token_id not in self._table.eos_token_ids, forced))

    def foreseen(self, committed: Seq[int]) -> list[int]:
        """Return a draft of the text behind the committed output tokens: what is forced, or begins so and is likely."""
        forced = self.forced(committed)
        likely = [] if self._likely is None else self._likely.after(committed)
        return likely if likely[: len(forced)] == forced else forced

    def note_stray(self, num_committed: int) -> None:
        """Learn that the grammar forbade a pick behind `num_committed` output tokens: for some tokens masks come first.

        A target that strays from its grammar may go on to, and a pick that is made twice takes longer than a mask. Most
        stray once. So masks come first for one token, and for twice as many each time that it strays soon again.
        """
        is_again = num_committed <= self.masks_first_until + _SOON
        self._num_astray = min(2 * self._num_astray, _MOST_ASTRAY) if is_again and self._num_astray else 1
        self.masks_first_until = num_committed + 1 + self._num_astray

    def _commit(self, committed: Seq[int]) -> bool:
        """Read the committed output tokens; return False if one of them ends the text, or is not allowed."""
        is_open = self._table.eos_token_ids.isdisjoint(committed[self._reader.num_committed :])
        return is_open and self._reader.commit(committed)

    def _may_follow(self, drafted: Seq[int], token_id: int) -> bool:
        """Return whether the mask behind the committed tokens and these ones has a token."""
        forced = self._forced_behind(drafted)
        if forced is None:
            return False
        if forced:  # of all tokens that would begin the same text a mask has one
            return token_id == forced[0]
        if token_id in self._table.eos_token_ids:
            return self._reader.read(drafted) and bool(self._reader.ask(lambda matcher: matcher.is_accepting()))
        return self._reader.read([*drafted, token_id])

    def _forced_behind(self, drafted: Seq[int]) -> list[int] | None:
        """Return the tokens of the text that alone may follow these drafted ones; None if those are not allowed."""
        reader = self._reader
        place = reader.num_committed + len(drafted)
        if not reader.has_read(drafted) or place not in reader.forced:
            if not self._table.eos_token_ids.isdisjoint(drafted) or not reader.read(drafted):
                return None
            forced = reader.ask(lambda matcher: matcher.compute_ff_tokens())
            if forced is None:
                return None
            reader.forced[place] = forced
        return reader.forced[place]

    def _compute(self, num_tokens: int) -> Mask:
        bits = self._reader.ask(lambda matcher: matcher.compute_bitmask())
        if bits is None:
            return self._nothing(f"{CANNOT_FOLLOW}: {self._reader.error}")
        mask = np.frombuffer(bits, Words)[: self._table.num_words]
        if not any(bits):
            return self._nothing(NOTHING_FITS)
        self._reader.masks[num_tokens] = mask
        return mask

    def _nothing(self, why: str) -> Mask:
        self.dead_end = why
        return np.zeros(self._table.num_words, dtype=Words)


class ForwardMatcher(Matcher):
    """The place of a row that is written without a draft, by a matcher of llguidance that never goes back.

    `Matcher` must give the same masks, whatever was drafted. Nothing is shared with it: the grammar is compiled for
    this row alone, with a lexer of its own.
    """

    def __init__(self, table: TokenTable, compiled: Compiled) -> None:
        """Begin before the first token, with a grammar that was compiled for this row."""
        super().__init__(table, Reader(lambda _: compiled))
        self._own, self._num_read = compiled.start, 0

    def mask(self, committed: Seq[int], drafted: Seq[int] = ()) -> Mask:
        """Return which tokens may follow the committed output tokens, which grow from question to question."""
        assert not drafted, "a row that is written forward has no draft"
        if new := list(committed[self._num_read :]):
            is_read = self._own.try_consume_tokens(new) == len(new)
            assert is_read or self._own.is_error(), "the row has a token that its grammar forbids"
        self._num_read, self.dead_end = len(committed), None
        bits = self._own.compute_bitmask()
        if self._own.is_error():
            return self._nothing(f"{CANNOT_FOLLOW}: {in_one_line(self._own.get_error())[:MAX_REASON]}")
        return np.frombuffer(bits, Words)[: self._table.num_words] if any(bits) else self._nothing(NOTHING_FITS)


class Place(NamedTuple):
    """Place of a sequence in its grammar: behind committed output tokens, and then behind each drafted one."""

    matcher: Matcher
    committed: Seq[int]
    drafted: Seq[int]


def masks_at_once(places: Seq[Place], num_positions: int) -> npt.NDArray[np.int32] | None:
    """Return the masks [R, J, W] behind the committed tokens and behind the drafted ones, at most J - 1 of a sequence.

    They are those that `Matcher.mask` returns; everything is allowed where that is None. Bit i of word w stands for
    token id 32 * w + i. There are none (None) if llguidance meets an error, or if nothing may follow somewhere:
    `Matcher.mask` knows what to do there, and why nothing follows.
    """
    packed_RJW = np.full((len(places), num_positions, places[0].matcher._table.num_tokenizer_words), -1, dtype=np.int32)
    address, size = packed_RJW.ctypes.data, packed_RJW[0, 0].nbytes
    for number, place in enumerate(places):
        first = address + number * num_positions * size
        if not place.matcher.write_masks(
            place.committed, place.drafted, range(first, first + num_positions * size, size)
        ):
            return None
    return packed_RJW
