"""The definition of a grammar as the library llguidance reads it, and what is wrong with one that it cannot compile.

llguidance says what a mistake is, and for regular expressions and Lark also where. For a schema the place is found
here: the innermost subschema that is refused for the same reason when it is compiled alone.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from decoding.grammar.library_error import in_one_line
from decoding.grammar.patterns import Place, pattern_problem, patterns_in
from decoding.grammar.structured import Structured

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
        return _problem_with_patterns(structured) if kind in ("json_schema", "regex") else None
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


def _problem_with_patterns(structured: Structured) -> str | None:
    patterns = patterns_in(structured.schema) if structured.regex is None else [(Place(), structured.regex)]
    problem = pattern_problem(patterns)
    if problem is None:
        return None
    pointer, error = problem
    where = f" at {_shown(pointer)}" if pointer else ""
    return f"sampling.structured.{structured.kind} cannot be compiled{where}: {in_one_line(error)}"


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
