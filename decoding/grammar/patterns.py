"""Patterns of a JSON Schema whose lexer is too large, found before a text has come to them.

The lexer of a grammar is built as the text goes on. A pattern behind other properties is met in the middle of an
output, where every step that meets it would cost a tenth of a second, and the row would fail. So the work that
patterns can make is bounded before they are compiled, for all patterns of a form together: by their fixed text, which
is known from the expressions (`decoding/grammar/fixed_text.py`), and by what llguidance spends on the beginnings of
those that have much of it, and of the repeated groups in them.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

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
_DATA = ("const", "enum", "default", "example", "examples")  # keywords of a schema whose values are no schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # that have schemas by names


class Place(NamedTuple):
    """A place of a subschema. Its pointer is written only when it is shown, since names can be long."""

    outer: "Place | None" = None
    name: str | int = ""

    @property
    def pointer(self) -> str:
        names, place = [], self
        while place.outer is not None:
            names.append("/" + str(place.name).replace("~", "~0").replace("/", "~1"))
            place = place.outer
        return "".join(reversed(names))


def patterns_in(schema: Any) -> Iterator[tuple[Place, str]]:
    """Yield the regular expressions of a schema with the places of their subschemas.

    A mapping that a reference leads to can be a schema, and also, where it lies, the names of some.
    """
    todo: list[tuple[Place, Any, bool]] = [(Place(), schema, False)]
    seen: set[tuple[int, bool]] = set()
    while todo:
        place, value, has_names = todo.pop()
        if not isinstance(value, Mapping | list | tuple) or (id(value), has_names) in seen:
            continue
        seen.add((id(value), has_names))
        children = []
        if isinstance(value, Mapping):
            if not has_names:
                yield from _own_patterns(place, value)
                children += _target(schema, value.get("$ref"))
            children += [
                (Place(place, name), each, not has_names and name in _NAMED)
                for name, each in value.items()
                if has_names or name not in _DATA
            ]
        else:
            children += [(Place(place, index), each, False) for index, each in enumerate(value)]
        todo += reversed(children)


def _own_patterns(place: Place, schema: Mapping[Any, Any]) -> Iterator[tuple[Place, str]]:
    """Yield those of a subschema, and not of the schemas in it."""
    if isinstance(schema.get("pattern"), str):
        yield place, schema["pattern"]
    for_names = schema.get("patternProperties")
    if isinstance(for_names, Mapping):
        yield from ((Place(place, "patternProperties"), name) for name in for_names if isinstance(name, str))


def _target(schema: Any, reference: Any) -> list[tuple[Place, Any, bool]]:
    """Return the subschema that a reference leads to, which may lie among data; nothing if there is none."""
    pointer = unquote(reference.partition("#")[2]) if isinstance(reference, str) else ""
    if not pointer.startswith("/"):
        return []
    place = Place()
    for step in pointer[1:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and name in schema:
            place, schema = Place(place, name), schema[name]
        elif isinstance(schema, list | tuple) and name.isdecimal() and int(name[:9]) < len(schema):
            place, schema = Place(place, int(name)), schema[int(name)]
        else:
            return []
    return [(place, schema, False)]


def pattern_problem(patterns: Iterable[tuple[Place, str]]) -> tuple[str, str] | None:
    """Return the first of these patterns at which they are too large together, by its pointer, and why; else None."""
    num_fixed = num_spent = 0
    known: set[str] = set()  # patterns with a choice, which ends what can be foreseen; the others count each time
    known_parts: set[str] = set()  # patterns and groups whose beginnings have been read
    for place, pattern in patterns:
        if pattern in known:
            continue
        text, num_before = fixed_text(pattern), num_fixed + num_spent
        if text.has_choice:
            known.add(pattern)
        is_large = has_more(text.longest, len(pattern))
        num_fixed += text.longest if is_large else 0
        if num_fixed > MOST_FIXED:
            why = f"write out {num_fixed} bytes without a choice, more than {MOST_FIXED}"
            return place.pointer, _too_large(why, num_before)
        for part in chain(text.groups(), [pattern] if is_large else []):
            if part in known_parts:
                continue
            known_parts.add(part)
            spent = _spent(part.removeprefix("^").removesuffix("$"))
            if isinstance(spent, str):
                return place.pointer, spent
            num_spent += spent
            if num_spent > _MOST_STEPS:
                return place.pointer, _too_large("have too many groups that write out much", num_before)
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
    fresh = LLMatcher(byte_tokenizer(), LLMatcher.grammar_from_regex(pattern), log_level=0, limits=limits)
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
def byte_tokenizer() -> "LLTokenizer":
    """Return a tokenizer whose token ids are bytes, with an end token behind them."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
