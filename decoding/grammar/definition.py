"""The definition of a grammar as the library llguidance reads it, compiled, or what is wrong with it in one line.

llguidance says what a mistake is, and for regular expressions and Lark also where. For a schema the place is found
here: the innermost subschema that is refused for the same reason when it is compiled alone.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from decoding.grammar.patterns import INITIAL_LEXER_FUEL, Place, pattern_problem, patterns_in
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import Words

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MAX_PLACES = 2000  # subschemas that are compiled to find the place of a mistake
_MAX_COMPILED = 2 * 2**20  # characters of them, together; a large schema that is shared is compiled with each
# Symbols of a grammar: some 2,000 optional properties, or 15,000 alternatives. llguidance's default is 25 times as
# many, which take seconds to compile, and hold the interpreter's lock for milliseconds at each token.
MAX_GRAMMAR_SIZE = 20_000
_MAX_POINTER = 200  # characters of a place that are shown
_SHARED = ("$defs", "definitions")  # what references of a subschema lead to
# White space between the tokens of JSON: a line break and an indentation, as printers of JSON write. Without an end to
# it, a model that finds a blank likely after a blank writes nothing else (so does the bundled target at temperature 0).
_WHITE_SPACE = r" ?(\r?\n)?[ \t]{0,40}"
_TOO_COMPLEX = ("LexerTooComplex", "ParserTooComplex")  # llguidance's names of its limits
_NOTHING_FOLLOWS = "NoExtensionBias"  # its name for a place behind which no token is allowed
_MAX_MESSAGE = 400  # characters of an error
_MAX_LINE, _MAX_END = 140, 60  # characters of each line, which may repeat the grammar; and of them, of its end
_ADVICE = {  # words of the library, and what to do about them
    "too many expressions constructed": "an expression is too large for the lexer: use smaller counts of repetitions",
    "grammar size (number of symbols) too big": "use fewer properties or alternatives",
    "initial lexer configuration (grammar) too big": "use fewer or shorter texts",
    "schema too large": "use fewer or smaller alternatives",
    "Unimplemented keys": "leave them out: they are not supported",
    "Default retriever does not fetch resources": "references lead to places of the same schema, as in #/$defs/name",
    "NoExtensionBias": "no text goes on as it asks: a rule or a reference never ends, or parts contradict each other",
    "Failed to generate regex for": "use smaller bounds",
    "oneOf constraints are not supported": "use anyOf",
}


def definition_of(structured: Structured) -> str:
    """Return the grammar in llguidance's own form, not compiled yet."""
    from llguidance import LLMatcher  # not where a machine has torch and transformers alone

    if structured.is_json:
        return _as_definition(structured.schema, structured)
    if structured.regex is not None:
        return LLMatcher.grammar_from_regex(structured.regex)
    if structured.choice is not None:
        texts = [json.dumps(text, ensure_ascii=False) for text in structured.choice]
        # A terminal: as alternatives of a rule, some thousand texts are more than the parser takes, after a minute.
        return LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + " | ".join(texts))
    assert structured.grammar is not None, "a value that was checked has one of the kinds"
    return LLMatcher.grammar_from_lark(structured.grammar)


@lru_cache(maxsize=256)
def _problem_of(key: str) -> str | None:
    kind, disables_whitespace, value = json.loads(key)
    structured = Structured(**{kind: value}, disable_any_whitespace=disables_whitespace)
    try:
        message = _message(definition_of(structured))
    except ValueError as error:  # llguidance cannot even read it, such as a number beyond its numbers
        return f"sampling.structured.{kind} cannot be compiled: {in_one_line(str(error))}"
    if message is None:
        if kind not in ("json_schema", "regex"):
            return None
        patterns = patterns_in(structured.schema) if structured.regex is None else [(Place(), structured.regex)]
        problem = pattern_problem(patterns)
        if problem is None:
            return None
        where, message = f" at {_shown(problem[0])}" if problem[0] else "", in_one_line(problem[1])
    else:
        where = _place_of(structured, message) if structured.json_schema is not None else ""
    return f"sampling.structured.{kind} cannot be compiled{where}: {message}"


def problem_with(structured: Structured) -> str | None:
    """Return why this grammar cannot be compiled, and where, in one line; None if it can. No tokenizer is needed."""
    return _problem_of(structured.key)


def _message(definition: str) -> str | None:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SIZE)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(definition, limits=limits)
    return in_one_line(messages[0]) if is_error else None


def _place_of(structured: Structured, message: str) -> str:
    """Return " at <JSON pointer>" of the innermost subschema that is refused alone for the same reason; else ""."""
    schema = structured.schema
    shared = {name: schema[name] for name in _SHARED if name in schema}
    place, num_compiled = "", 0
    for pointer, part in islice(_subschemas(schema, ""), _MAX_PLACES):
        if not pointer.startswith(place):  # beside the place found so far; what lies inside it can be more exact
            continue
        definition = _as_definition({**shared, **part}, structured)
        num_compiled += len(definition)
        if num_compiled > _MAX_COMPILED:
            break
        if _message(definition) == message:
            place = pointer
    return f" at {_shown(place)}" if place else ""


def _shown(pointer: str) -> str:
    return pointer if len(pointer) <= _MAX_POINTER else f"{pointer[:_MAX_POINTER]}..."


def _as_definition(schema: Mapping[str, Any], structured: Structured) -> str:
    from llguidance import LLMatcher

    options: Any = {"whitespace_pattern": _WHITE_SPACE}
    if structured.disable_any_whitespace:
        options = {"whitespace_flexible": False}
    elif "x-guidance" in schema:
        options = None  # the schema has llguidance's options itself
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)


def _subschemas(value: Any, pointer: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects inside a schema with their JSON pointers (RFC 6901), outer ones first."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list | tuple):
        items = iter(enumerate(value))
    for name, each in items:
        inner = f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"
        if isinstance(each, Mapping):
            yield inner, each
        yield from _subschemas(each, inner)


def in_one_line(message: str) -> str:
    """Return an error of llguidance without its drawings of the place and without line breaks, cut if it is long."""
    lines = [line.strip() for line in message.splitlines()]
    told = [line for line in lines if line.strip("^| ") and line != "<non-verbose/>"]
    said = "; ".join(_cut(line, _MAX_LINE, _MAX_END) for line in told)
    advice = next((advice for words, advice in _ADVICE.items() if words in message), None)
    return _cut(said, _MAX_MESSAGE) + (f" ({advice})" if advice else "")


def _cut(text: str, length: int, of_end: int = 0) -> str:
    return text if len(text) <= length else f"{text[: length - of_end]}...{text[len(text) - of_end :]}"


class Compiled(NamedTuple):
    """A compiled grammar. Matchers of llguidance that are copied from it share its lexer, and the lexer's limits."""

    start: "LLMatcher"  # has read nothing, and never does
    first: int  # a token that may begin the text

    @classmethod
    def of(cls, tokenizer: "LLTokenizer", structured: Structured) -> "Self | str":
        """Return the compiled grammar, whose first step is made; or why there is none."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            verbose_errors=False, initial_lexer_fuel=INITIAL_LEXER_FUEL, max_grammar_size=MAX_GRAMMAR_SIZE
        )
        made = LLMatcher(tokenizer, definition_of(structured), log_level=0, limits=limits)
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
