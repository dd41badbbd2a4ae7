"""Patterns of a JSON Schema whose lexer is too large, found before a text has come to them.

The lexer of a grammar is built as the text goes on. A pattern behind other properties is met in the middle of an
output, where every step that meets it would cost a tenth of a second, and the row would fail. So the work that
patterns can make is bounded before they are compiled, for all patterns of a form together: by their fixed text, which
is known from the expressions (`decoding/grammar/fixed_text.py`), and by what llguidance spends on the beginnings of
those that have much of it, and of the repeated groups in them.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from decoding.grammar.fixed_text import fixed_text, has_more

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# What a lexer may cost at its first step, in llguidance's units; its default is five times as much. An expression that
# needs more, such as (a{1000}){1000}, is refused after a second rather than after several.
INITIAL_LEXER_FUEL = 200_000
# Bytes of fixed text that a form may have in patterns that have much of it. A step reads what is left of it again.
MOST_FIXED = 10_000
# What the beginnings of patterns and groups may cost in one step, in llguidance's units (2,000 to 14,000 a
# millisecond). The first of these that is enough counts, and what is counted has a greatest sum.
_STEPS, _MOST_STEPS = (2_000, 10_000, 50_000, 200_000), 400_000
_NUM_STEPS = 3  # the error of a lexer that is too large comes behind the first byte
_DATA = ("const", "enum", "default", "examples")  # keywords of a schema whose values are no schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # that have schemas by names


def patterns_in(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of a schema with the JSON pointers of their subschemas."""
    todo, has_names, seen = [("", schema)], {"": False}, {""}
    while todo:
        pointer, value = todo.pop()
        is_names = has_names.pop(pointer)
        children = []
        if isinstance(value, Mapping):
            if not is_names:
                yield from _own_patterns(pointer, value)
                reference = value.get("$ref")
                if isinstance(reference, str) and reference.startswith("#/") and reference[1:] not in seen:
                    children += _target(schema, reference[1:])
            children += [
                (f"{pointer}/{_escaped(name)}", each, not is_names and name in _NAMED)
                for name, each in value.items()
                if is_names or name not in _DATA
            ]
        elif isinstance(value, list | tuple):
            children += [(f"{pointer}/{index}", each, False) for index, each in enumerate(value)]
        for inner, each, names in reversed(children):
            if inner not in seen:
                seen.add(inner)
                has_names[inner] = names
                todo.append((inner, each))


def _own_patterns(pointer: str, schema: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield those of a subschema, and not of the schemas in it."""
    if isinstance(schema.get("pattern"), str):
        yield pointer, schema["pattern"]
    for_names = schema.get("patternProperties")
    if isinstance(for_names, Mapping):
        yield from ((f"{pointer}/patternProperties", name) for name in for_names if isinstance(name, str))


def _target(schema: Any, pointer: str) -> list[tuple[str, Any, bool]]:
    """Return the subschema that a reference leads to, which may lie among data; nothing if there is none."""
    for step in pointer[1:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and name in schema:
            schema = schema[name]
        elif isinstance(schema, list | tuple) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        else:
            return []
    return [(pointer, schema, False)]


def _escaped(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def pattern_problem(patterns: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the first of these patterns at which they are too large together, by its pointer, and why; else None."""
    num_fixed = num_spent = 0
    known: set[str] = set()  # patterns and groups that have been read
    for pointer, pattern in patterns:
        text, num_before = fixed_text(pattern), num_fixed + num_spent
        is_large = has_more(text.longest, pattern)
        num_fixed += text.longest if is_large else 0
        if num_fixed > MOST_FIXED:
            why = f"write out {num_fixed} bytes without a choice, more than {MOST_FIXED}"
            return pointer, _too_large(why, num_before)
        for part in dict.fromkeys((*text.groups, *([pattern] if is_large else []))):
            if part in known:
                continue
            known.add(part)
            spent = _spent(part.removeprefix("^").removesuffix("$"))
            if isinstance(spent, str):
                return pointer, spent
            num_spent += spent
            if num_spent > _MOST_STEPS:
                return pointer, _too_large("have too many groups that write out much", num_before)
    return None


def _too_large(why: str, num_before: int) -> str:
    together = " of this pattern and of those before it" if num_before else ""
    return f"lexer error: the repetitions{together} {why}; use smaller counts of repetitions"


@lru_cache(maxsize=1024)
def _spent(pattern: str) -> int | str:
    """Return the first of `_STEPS` that is enough to read the beginning of a pattern; llguidance's error if none is."""
    error = ""
    for most in _STEPS:
        error = _error(pattern, most)
        if not error:
            return most
    return error


def _error(pattern: str, most: int) -> str:
    """Return llguidance's error if the beginning of a pattern cannot be read in steps that cost at most so much."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=INITIAL_LEXER_FUEL, step_lexer_fuel=most)
    fresh = LLMatcher(_bytes(), LLMatcher.grammar_from_regex(pattern), log_level=0, limits=limits)
    for place in (0, -1):  # the first and the last byte that may begin the text
        matcher = fresh.deep_copy()
        for _ in range(_NUM_STEPS):
            if matcher.is_error():
                break
            allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").nonzero()[0]
            if not allowed.size:
                break
            matcher.try_consume_tokens([int(allowed[place])])
        if matcher.get_error().startswith("lexer error"):
            return str(matcher.get_error())
    return ""


@lru_cache(maxsize=1)
def _bytes() -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
