"""Grammars: the grammars of one target's vocabulary, compiled when they are first needed, the newest ones kept."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from decoding.grammar.definition import definition_of, in_one_line, problem_with
from decoding.grammar.likely_text import LikelyText
from decoding.grammar.matcher import Matcher
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_KEPT = 128  # compiled grammars; one of a large schema takes some megabytes


class Grammars:
    """What compiles the grammars of an engine. Any thread may ask."""

    def __init__(self, load: Callable[[], TokenTable], most_kept: int = MOST_KEPT) -> None:
        """Keep at most `most_kept` compiled grammars. `load` is called for the first grammar; it may raise ValueError,
        which is then the problem of every grammar."""
        self._load, self._most_kept = load, most_kept
        self._table: TokenTable | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()  # by the key of their definition
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
        return None

    def matcher(self, structured: Structured) -> Matcher:
        """Return a matcher that stands before the first token. Raises ValueError for what `problem_with` names."""

        def compiled(anew: bool) -> "LLMatcher":
            # Copies share a lexer, whose limits they reach together: a matcher that meets one gets a lexer of its own.
            if anew:
                with self._lock:
                    self._compiled.pop(structured.key, None)
            return self._of(structured).deep_copy()

        likely = None
        if structured.is_json and not structured.disable_any_whitespace:
            tight = replace(structured, disable_any_whitespace=True)
            likely = LikelyText(self._tokens(), lambda: self._of(tight).deep_copy())
        return Matcher(self._tokens(), compiled, likely)

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
        from llguidance import LLMatcher, LLParserLimits

        table, key = self._tokens(), structured.key
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        # Not under the lock: a large schema takes seconds, and others need the grammars that are there.
        limits = LLParserLimits(verbose_errors=False)
        made = LLMatcher(table.tokenizer, definition_of(structured), log_level=0, limits=limits)
        if made.is_error():
            raise ValueError(
                f"sampling.structured.{structured.kind} cannot be compiled: {in_one_line(made.get_error())}"
            )
        with self._lock:
            self.num_compiled += 1
            self._compiled[key] = made
            while len(self._compiled) > self._most_kept:
                self._compiled.popitem(last=False)
        return made
