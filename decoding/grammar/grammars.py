"""Grammars: the grammars of one target's vocabulary, compiled when they are first needed, the newest ones kept."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from decoding.grammar.definition import MAX_GRAMMAR_SIZE, definition_of, problem_with
from decoding.grammar.forward_matcher import ForwardMatcher
from decoding.grammar.library_error import in_one_line
from decoding.grammar.likely_text import LikelyText
from decoding.grammar.matcher import Matcher
from decoding.grammar.patterns import INITIAL_LEXER_FUEL
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable, Words

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_KEPT = 128  # compiled grammars; one of a large schema takes some megabytes
_TOO_COMPLEX = ("LexerTooComplex", "ParserTooComplex")  # llguidance's names of its limits
_NOTHING_FOLLOWS = "NoExtensionBias"  # its name for a place behind which no token is allowed


class Grammars:
    """What compiles the grammars of an engine. Any thread may ask."""

    def __init__(self, load: Callable[[], TokenTable], most_kept: int = MOST_KEPT) -> None:
        """Keep at most `most_kept` compiled grammars. `load` is called for the first grammar; it may raise ValueError,
        which is then the problem of every grammar."""
        self._load, self._most_kept = load, most_kept
        self._table: TokenTable | None = None
        self._compiled: OrderedDict[str, LLMatcher | str] = OrderedDict()  # by their key; a text says why there is none
        self._lock = Lock()
        self.num_compiled = 0  # so far

    def problem_with(self, structured: Structured) -> str | None:
        """Return why an output cannot be held to this grammar, in one line; None if it can."""
        problem = problem_with(structured)
        if problem is not None:
            return problem
        try:
            self._of(structured)
        except ValueError as error:
            return str(error)
        self._likely(structured)  # so that no round compiles it
        return None

    def matcher(self, structured: Structured) -> Matcher:
        """Return a matcher that stands before the first token. Raises ValueError for what `problem_with` names."""

        def compiled(anew: bool) -> "LLMatcher":
            # Copies share a lexer, whose limits they reach together: a matcher that meets one gets a lexer of its own.
            if anew:
                with self._lock:
                    self._compiled.pop(structured.key, None)
            return self._of(structured).deep_copy()

        tight = self._likely(structured)
        likely = None if tight is None else LikelyText(self._tokens(), tight.deep_copy)
        return Matcher(self._tokens(), compiled, likely)

    def forward_matcher(self, structured: Structured) -> ForwardMatcher:
        """Return a matcher for a row without a draft, which shares nothing with any other.

        Raises ValueError for what `problem_with` names.
        """

        def compile_anew() -> "LLMatcher":
            made = compiled(self._tokens(), structured)
            if isinstance(made, str):
                raise ValueError(made)
            return made

        return ForwardMatcher(self._tokens(), compile_anew)

    def _likely(self, structured: Structured) -> "LLMatcher | None":
        """Return the grammar without white space that guesses where white space is free; None if there is none."""
        if not structured.is_json or structured.disable_any_whitespace:
            return None
        try:
            return self._of(replace(structured, disable_any_whitespace=True))
        except ValueError:  # a guess can be done without
            return None

    def is_whole(self, structured: Structured, token_ids: Seq[int]) -> bool:
        """Return whether the last of these output tokens may end the text of those before it, by this grammar."""
        *text, end = token_ids
        matcher = self._of(structured).deep_copy()
        if end not in self._tokens().eos_token_ids or (text and matcher.try_consume_tokens(text) != len(text)):
            return False
        return bool(matcher.is_accepting()) and not matcher.is_error()

    def _tokens(self) -> TokenTable:
        with self._lock:
            if self._table is None:
                self._table = self._load()
            return self._table

    def _of(self, structured: Structured) -> "LLMatcher":
        """Return the compiled grammar, which must not be advanced. Raises ValueError if it cannot be compiled."""
        table, key = self._tokens(), structured.key
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
        if found is None:
            # Not under the lock: a large schema takes seconds, and others need the grammars that are there.
            found = compiled(table, structured)
            with self._lock:
                self.num_compiled += 1
                self._compiled[key] = found
                while len(self._compiled) > self._most_kept:
                    self._compiled.popitem(last=False)
        if isinstance(found, str):
            raise ValueError(found)
        return found


def compiled(table: TokenTable, structured: Structured) -> "LLMatcher | str":
    """Return the compiled grammar, whose first step is made; or why there is none."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        verbose_errors=False, initial_lexer_fuel=INITIAL_LEXER_FUEL, max_grammar_size=MAX_GRAMMAR_SIZE
    )
    made = LLMatcher(table.tokenizer, definition_of(structured), log_level=0, limits=limits)
    if not made.is_error():
        # llguidance builds its lexer at the first mask, and lets other threads go on meanwhile, as it does not when it
        # is asked for forced tokens. A lexer that is too large says so behind a token.
        first = made.deep_copy()
        words = np.frombuffer(first.compute_bitmask(), Words)
        if first.get_error().startswith(_NOTHING_FOLLOWS):
            return "sampling.structured: the grammar cannot be followed: no token can begin what it asks for"
        if words.any():
            word = int(words.nonzero()[0][0])
            first.try_consume_tokens([32 * word + _lowest_bit(int(words[word]))])
        if first.stop_reason() not in _TOO_COMPLEX and not first.get_error().startswith("lexer error"):
            return made  # a dead end behind the first token is the row's to say
        made = first
    return f"sampling.structured.{structured.kind} cannot be compiled: {in_one_line(made.get_error())}"


def _lowest_bit(word: int) -> int:
    return (word & -word).bit_length() - 1
