"""ForwardMatcher: a grammar's masks by a matcher of llguidance that reads each token once and never goes back.

`Matcher` must give the same masks, whatever was drafted. Nothing is shared with it: the grammar is compiled for this
row alone, with a lexer of its own.
"""

from collections.abc import Sequence as Seq

import numpy as np

from decoding.grammar.compiled import Compiled
from decoding.grammar.library_error import in_one_line
from decoding.grammar.matcher import CANNOT_FOLLOW, NOTHING_FITS, Matcher
from decoding.grammar.reader import MAX_REASON, Reader
from decoding.grammar.token_table import Mask, TokenTable, Words


class ForwardMatcher(Matcher):
    """The place of a row that is written without a draft, one token after the other."""

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
