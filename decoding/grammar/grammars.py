"""Grammars: the grammars of one target's vocabulary, compiled when they are first needed, the newest ones kept."""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from threading import Lock

from decoding.common_prefix import common_prefix
from decoding.grammar.definition import Compiled, problem_with
from decoding.grammar.likely_text import LikelyText
from decoding.grammar.matcher import ForwardMatcher, Matcher
from decoding.grammar.patterns import byte_tokenizer
from decoding.grammar.reader import Reader
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable

MOST_KEPT = 128  # compiled grammars; one of a large schema takes some megabytes


class Grammars:
    """What compiles the grammars of an engine. Any thread may ask."""

    def __init__(self, load: Callable[[], TokenTable], most_kept: int = MOST_KEPT) -> None:
        """Keep at most `most_kept` compiled grammars. `load` is called for the first grammar; it may raise ValueError,
        which is then the problem of every grammar."""
        self._load, self._most_kept = load, most_kept
        self._table: TokenTable | None = None
        self._compiled: OrderedDict[str, Compiled | str] = OrderedDict()  # by their key; a text says why there is none
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
        tight = self._likely(structured)
        likely = None if tight is None else LikelyText(self._tokens(), tight.start.deep_copy)
        return Matcher(self._tokens(), self._reader(structured), likely)

    def forward_matcher(self, structured: Structured) -> ForwardMatcher:
        """Return a matcher for a row without a draft, which shares nothing with any other."""
        return ForwardMatcher(self._tokens(), self._made(structured))

    def _reader(self, structured: Structured) -> Reader:
        return Reader(lambda alone: self._made(structured) if alone else self._of(structured))

    def _likely(self, structured: Structured) -> Compiled | None:
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
        reader = self._reader(structured)
        if end not in self._tokens().eos_token_ids or not reader.commit(text):
            return False
        return bool(reader.ask(lambda matcher: matcher.is_accepting()))

    def _tokens(self) -> TokenTable:
        with self._lock:
            if self._table is None:
                self._table = self._load()
            return self._table

    def _of(self, structured: Structured) -> Compiled:
        """Return the compiled grammar, whose lexer is sound. Raises ValueError if it cannot be compiled."""
        key = structured.key
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
        if found is None or (isinstance(found, Compiled) and found.is_worn):
            # Not under the lock: a large schema takes seconds, and others need the grammars that are there.
            found = Compiled.of(self._tokens().tokenizer, structured)
            with self._lock:
                self.num_compiled += 1
                self._compiled[key] = found
                while len(self._compiled) > self._most_kept:
                    self._compiled.popitem(last=False)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _made(self, structured: Structured) -> Compiled:
        """Return the grammar, compiled for one sequence alone."""
        made = Compiled.of(self._tokens().tokenizer, structured)
        assert isinstance(made, Compiled), "it could be compiled before"
        return made


def first_possible(structured: Structured, beginnings: Seq[str]) -> str | None:
    """Return the first of these texts that an output of this form may begin with; None if it may with none of them.

    There is at least one text. White space is not added to them: where JSON may have white space, it may have none.
    Raises ValueError for a form that cannot be compiled, and for one that is too complex to be followed.
    """
    found = Compiled.of(byte_tokenizer(), structured)
    if isinstance(found, str):
        raise ValueError(found)
    reader = Reader(lambda _: found)
    texts = [beginning.encode() for beginning in beginnings]
    first, last = min(texts), max(texts)
    shared = first[: common_prefix(first, last)]  # walked once; most forms of JSON stop within it
    if reader.commit(shared):
        for beginning, text in zip(beginnings, texts, strict=True):
            if reader.read(text[len(shared) :]):
                return beginning
            if reader.error:  # a limit of the library, which says nothing of the text
                break
    if reader.error:
        raise ValueError(f"sampling.structured.{structured.kind} cannot be followed: {reader.error}")
    return None
