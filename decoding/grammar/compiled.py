"""Compiled: one compilation of a grammar, with a lexer of its own."""

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from decoding.grammar.definition import MAX_GRAMMAR_SIZE, definition_of
from decoding.grammar.library_error import in_one_line
from decoding.grammar.patterns import INITIAL_LEXER_FUEL
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher

_TOO_COMPLEX = ("LexerTooComplex", "ParserTooComplex")  # llguidance's names of its limits
_NOTHING_FOLLOWS = "NoExtensionBias"  # its name for a place behind which no token is allowed


class Compiled(NamedTuple):
    """A compiled grammar. Matchers of llguidance that are copied from it share its lexer, and the lexer's limits."""

    start: "LLMatcher"  # has read nothing, and never does
    first: int  # a token that may begin the text

    @classmethod
    def of(cls, table: TokenTable, structured: Structured) -> "Self | str":
        """Return the compiled grammar, whose first step is made; or why there is none."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            verbose_errors=False, initial_lexer_fuel=INITIAL_LEXER_FUEL, max_grammar_size=MAX_GRAMMAR_SIZE
        )
        made = LLMatcher(table.tokenizer, definition_of(structured), log_level=0, limits=limits)
        if not made.is_error():
            # llguidance builds its lexer at the first mask, and lets other threads go on meanwhile, as it does not when
            # it is asked for forced tokens. A lexer that is too large says so behind a token.
            first = made.deep_copy()
            words = np.frombuffer(first.compute_bitmask(), Words)
            if is_dead_end(first):
                return "sampling.structured: the grammar cannot be followed: no token can begin what it asks for"
            token_id = 0
            if words.any():
                word = int(words.nonzero()[0][0])
                bits = int(words[word])
                token_id = 32 * word + (bits & -bits).bit_length() - 1  # the lowest
                first.try_consume_tokens([token_id])
            if first.stop_reason() not in _TOO_COMPLEX and not first.get_error().startswith("lexer error"):
                return cls(made, token_id)  # a dead end behind the first token is the row's to say
            made = first
        return f"sampling.structured.{structured.kind} cannot be compiled: {in_one_line(made.get_error())}"

    @property
    def is_worn(self) -> bool:
        """Whether the lexer has met one of its limits.

        It then refuses every token, of each text that it is asked about, and only a mask says why.
        """
        return self.start.validate_tokens([self.first]) == 0


def is_dead_end(matcher: "LLMatcher") -> bool:
    """Return whether a matcher's error is that no token can follow, which is no limit of the library."""
    return matcher.get_error().startswith(_NOTHING_FOLLOWS)
