"""Matcher: where one sequence stands in its grammar, and which tokens may come next.

A mask is a pure function of the grammar, the committed output tokens and the drafted tokens before the position. What
is kept here only saves time: the matcher stands behind the tokens that it was asked about last, goes back to where the
next question differs, and keeps the masks on the way. So it needs no care when a draft is rejected or a row is read
again, and a new matcher for the same tokens answers the same.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from decoding.grammar.library_error import in_one_line
from decoding.grammar.likely_text import LikelyText
from decoding.grammar.token_table import TokenTable, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher

_Answer = TypeVar("_Answer")
_SOON = 4  # output tokens behind the last masks: a target that strays there strays again
_MOST_ASTRAY = 16  # output tokens for which masks come first
_MOST_FORCED = 32  # places of which it is known what is forced
MAX_REASON = 300  # characters of llguidance's own error
CANNOT_FOLLOW = "the grammar cannot be followed further"
NOTHING_FITS = "no token of the vocabulary continues the text as the grammar asks"
Mask = npt.NDArray[np.uint32]  # packed, one bit for each token id (`token_table.Words`)


class Matcher:
    """The grammar of one sequence, and how far its tokens have come in it."""

    def __init__(
        self, table: TokenTable, compiled: Callable[[bool], "LLMatcher"], likely: LikelyText | None = None
    ) -> None:
        """Begin before the first token. `compiled` makes a fresh matcher of the grammar; it is called when needed.

        With True as argument the grammar is compiled anew, so that nothing of what other rows did is in it. `likely`
        guesses what is written where white space is free.
        """
        self._table, self._compiled, self._likely = table, compiled, likely
        self._inner: LLMatcher | None = None
        self._error = ""  # of the inner matcher that was given up last
        self._fed: list[int] = []  # output tokens that the inner matcher has read
        self._num_settled = 0  # of them: committed ones, which never change
        self._masks: dict[int, Mask] = {}  # by the number of tokens before the position, along `_fed`
        self._dead_ends: dict[int, str] = {}  # why a mask has no token
        self._forced: dict[int, list[int]] = {}  # what is forced, by the number of tokens before it
        self.masks_first_until = 0  # up to this many output tokens masks come before picks (`note_stray`)
        self._num_astray = 0  # tokens for which they did the last time
        self.dead_end: str | None = None  # why the mask that was asked for last has no token; None if it has some

    def mask(self, committed: Seq[int], drafted: Seq[int] = ()) -> Mask | None:
        """Return which tokens may follow the committed output tokens and the drafted ones.

        None says that nothing can follow, so that the position has no meaning: a drafted token is an end token, or one
        that the grammar does not allow. A mask without a single token says that the grammar is at a dead end, or too
        complex there; `dead_end` says which.
        """
        new = [*committed[self._num_settled :], *drafted]
        if not self._table.eos_token_ids.isdisjoint(new):
            return None
        num_tokens = self._num_settled + len(new)
        is_behind = num_tokens <= len(self._fed) and self._fed[self._num_settled : num_tokens] == new
        if not is_behind or num_tokens not in self._masks:
            if not self._go_to(new):
                if num_tokens > len(committed):
                    return None
                why = f"its first {num_tokens} output tokens are not what the grammar allows"
                self._nothing(num_tokens, why if self._inner is not None else f"the grammar fails: {self._error}")
            else:
                self._compute(num_tokens)
        mask, self.dead_end = self._masks[num_tokens], self._dead_ends.get(num_tokens)
        self._settle(len(committed))
        return mask

    def write_masks(self, committed: Seq[int], drafted: Seq[int], addresses: Seq[int]) -> bool:
        """Write the masks behind the committed output tokens, and behind each drafted one, to these addresses.

        There is room for `num_tokenizer_words` at each. Nothing is written where `mask` returns None. Return False if
        llguidance meets an error: then nothing is known of what was written, and the next question makes another inner
        matcher.
        """
        new = list(committed[self._num_settled :])
        if not self._table.eos_token_ids.isdisjoint(new) or not self._go_to(new):
            return False
        self._settle(len(committed))
        inner, num_bytes, num_read = self._matcher, Words.itemsize * self.num_tokenizer_words, 0
        inner.unsafe_compute_mask_ptr(addresses[0], num_bytes)
        for token_id in drafted:
            if token_id in self._table.eos_token_ids or inner.try_consume_tokens([token_id]) != 1:
                break
            num_read += 1
            inner.unsafe_compute_mask_ptr(addresses[num_read], num_bytes)
        if inner.is_error():
            self._inner = None  # it stays in its error
        elif num_read:
            inner.rollback(num_read)
        return self._inner is not None

    @property
    def num_tokenizer_words(self) -> int:
        """Words of a mask as llguidance writes it: a tokenizer may have more token ids than the target."""
        return self._table.num_tokenizer_words

    def allows(self, committed: Seq[int], new: Seq[int]) -> bool:
        """Return whether the masks behind the committed output tokens have each of these tokens, one behind the other.

        That takes a fraction of the time of the masks.
        """
        return self.num_allowed(committed, new) == len(new)

    def num_allowed(self, committed: Seq[int], new: Seq[int]) -> int:
        """Return how many of these tokens the masks behind the committed output tokens have, one behind the other.

        Behind a token that ends the text none is allowed.
        """
        tokens = list(committed[self._num_settled :])
        num_read = self._num_known(tokens, new)
        tokens += new[:num_read]
        for token_id in new[num_read:]:
            if not self._may_follow(tokens, token_id):
                break
            tokens.append(token_id)
            num_read += 1
        self._settle(len(committed))
        return num_read

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
        forced = self._forced_behind(list(committed[self._num_settled :])) or []
        self._settle(len(committed))
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

    def _num_known(self, before: list[int], new: Seq[int]) -> int:
        """Return how many tokens behind the settled ones and `before` were read, or can be read on, as allowed ones.

        The tokens of a draft have been read when the verdict on it is checked.
        """
        start, fed = self._num_settled + len(before), self._fed
        if fed[self._num_settled : start] != before:
            return 0
        num_known = 0
        for token_id, read in zip(new, fed[start:], strict=False):
            forced = self._forced.get(start + num_known)
            if token_id != read or forced is None or (forced and token_id != forced[0]):
                return num_known
            num_known += 1
        return num_known + self._read_on(new[num_known:]) if start + num_known == len(fed) else num_known

    def _read_on(self, new: Seq[int]) -> int:
        """Read the first of these tokens behind those that were read, as far as they are allowed; return how many.

        That is what `_may_follow` finds, without its detours, for most questions of a round. It stops at what is not
        so plain: an end token, a token that is not allowed, and an error.
        """
        inner, fed, ends = self._inner, self._fed, self._table.eos_token_ids
        if inner is None:
            return 0
        for num_read, token_id in enumerate(new):
            place = len(fed)
            forced = self._forced.get(place)
            if forced is None:
                forced = inner.compute_ff_tokens()
            if (forced and token_id != forced[0]) or token_id in ends:
                return num_read
            if inner.try_consume_tokens([token_id]) != 1 or inner.is_error():
                return num_read
            self._forced[place] = forced
            fed.append(token_id)
        return len(new)

    def _may_follow(self, before: list[int], token_id: int) -> bool:
        """Return whether the mask behind the settled tokens and these ones has a token."""
        forced = self._forced_behind(before)
        if forced is None:
            return False
        if forced:  # of all tokens that would begin the same text a mask has one
            return token_id == forced[0]
        if token_id in self._table.eos_token_ids:
            return self._go_to(before) and bool(self._ask(lambda matcher: matcher.is_accepting()))
        return self._go_to([*before, token_id])

    def _forced_behind(self, before: list[int]) -> list[int] | None:
        """Return the tokens of the text that alone may follow; None if the grammar does not allow `before`."""
        place = self._num_settled + len(before)
        is_behind = place <= len(self._fed) and self._fed[self._num_settled : place] == before
        if not is_behind or place not in self._forced:
            if not self._table.eos_token_ids.isdisjoint(before) or not self._go_to(before):
                return None
            self._forced[place] = self._ask(lambda matcher: matcher.compute_ff_tokens()) or []
        return self._forced[place]

    @property
    def _matcher(self) -> "LLMatcher":
        if self._inner is None:
            self._inner = self._compiled(False)
        return self._inner

    def _go_to(self, new: list[int]) -> bool:
        """Read exactly the settled tokens and `new`; return False if the grammar does not allow one of them."""
        same, fed = self._num_settled, self._fed
        for token_id in new:
            if same == len(fed) or fed[same] != token_id:
                break
            same += 1
        if same < len(fed):
            if self._inner is not None:
                self._inner.rollback(len(fed) - same)
            del fed[same:]
            self._keep(range(same + 1))
        if self._inner is None and fed:  # the inner matcher was given up: a fresh one reads all tokens
            self._matcher.try_consume_tokens(fed)
        rest = new[same - self._num_settled :]
        num_read = (self._ask(lambda matcher: matcher.try_consume_tokens(rest)) or 0) if rest else 0
        fed += rest[:num_read]
        return num_read == len(rest)

    def _ask(self, question: Callable[["LLMatcher"], _Answer]) -> _Answer | None:
        """Return the inner matcher's answer; None if it meets an error, also where it has read these tokens alone.

        A limit of the library may be met because of what other rows have asked the same lexer. So the grammar is
        compiled anew, and asked once more.
        """
        for anew in (False, True):
            if anew:
                self._inner = self._compiled(True)
                self._inner.try_consume_tokens(self._fed)
            answer = question(self._matcher)
            if not self._matcher.is_error():
                return answer
        self._error = in_one_line(self._matcher.get_error())[:MAX_REASON]
        self._inner = None  # it stays in its error: a fresh one goes on elsewhere
        return None

    def _compute(self, num_tokens: int) -> None:
        bits = self._ask(lambda matcher: matcher.compute_bitmask())
        if bits is None:
            self._nothing(num_tokens, f"{CANNOT_FOLLOW}: {self._error}")
            return
        self._masks[num_tokens] = np.frombuffer(bits, Words)[: self._table.num_words]
        if not any(bits):
            self._nothing(num_tokens, NOTHING_FITS)

    def _nothing(self, num_tokens: int, why: str) -> None:
        self._masks[num_tokens] = np.zeros(self._table.num_words, dtype=Words)
        self._dead_ends[num_tokens] = why

    def _settle(self, num_committed: int) -> None:
        """Remember that the first tokens are committed, as far as they have been read."""
        if self._num_settled < num_committed <= len(self._fed):
            self._num_settled = num_committed
            # What is known of earlier places is not asked for again. Of what is small, some may stay for a while.
            if self._masks or len(self._forced) > _MOST_FORCED:
                self._keep(range(num_committed, len(self._fed) + 1))

    def _keep(self, places: range) -> None:
        for table in (self._masks, self._dead_ends, self._forced):
            for place in [place for place in table if place not in places]:
                del table[place]
