"""ForwardMatcher: a grammar's masks by a matcher of llguidance that reads each token once and never goes back.

`Matcher` must give the same masks, whatever was drafted. Nothing is shared with it: the grammar is compiled for this
row alone, with a lexer of its own.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from decoding.grammar.library_error import in_one_line
from decoding.grammar.matcher import CANNOT_FOLLOW, MAX_REASON, NOTHING_FITS, Mask, Matcher
from decoding.grammar.token_table import TokenTable, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher


class ForwardMatcher(Matcher):
    """The place of a row that is written without a draft, one token after the other."""

    def __init__(self, table: TokenTable, compile_anew: Callable[[], "LLMatcher"]) -> None:
        """Begin before the first token. `compile_anew` compiles the grammar, each time that it is called."""
        super().__init__(table, lambda _: compile_anew())
        self._compile_anew, self._own, self._num_read = compile_anew, compile_anew(), 0

    def mask(self, committed: Seq[int], drafted: Seq[int] = ()) -> Mask:
        """Return which tokens may follow the committed output tokens, which grow from question to question."""
        assert not drafted, "a row that is written forward has no draft"
        bits = self._bits_behind(committed[self._num_read :])
        if self._own.is_error():  # of its limits some is used up at each place: what counts is this place alone
            self._own = self._compile_anew()
            bits = self._bits_behind(committed)
        self._num_read = len(committed)
        if self._own.is_error():
            self.dead_end = f"{CANNOT_FOLLOW}: {in_one_line(self._own.get_error())[:MAX_REASON]}"
            return np.zeros(self._table.num_words, dtype=Words)
        self.dead_end = None if any(bits) else NOTHING_FITS
        return np.frombuffer(bits, Words)[: self._table.num_words]

    def _bits_behind(self, new: Seq[int]) -> bytes:
        if new and self._own.try_consume_tokens(list(new)) != len(new):
            assert self._own.is_error(), "the row has a token that its grammar forbids"
        return self._own.compute_bitmask()
