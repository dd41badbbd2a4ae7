"""Patterns of a JSON Schema whose lexer is too large, found before a text has come to them.

The lexer of a grammar is built as the text goes on. A pattern behind other properties is met in the middle of an
output, where every step that meets it would cost a tenth of a second, and the row would fail. So each pattern is read
alone, over bytes.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# What a lexer may cost at its first step, in llguidance's units; its default is five times as much. An expression that
# needs more, such as (a{1000}){1000}, is refused after a second rather than after several.
INITIAL_LEXER_FUEL = 200_000
_NUM_STEPS = 3  # the error of a lexer that is too large comes behind the first byte


def patterns_in(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield the regular expressions of a schema with the JSON pointers of their subschemas."""
    if isinstance(value, Mapping):
        if isinstance(value.get("pattern"), str):
            yield pointer, value["pattern"]
        for_names = value.get("patternProperties")
        if isinstance(for_names, Mapping):
            yield from ((f"{pointer}/patternProperties", name) for name in for_names if isinstance(name, str))
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, each in items:
        yield from patterns_in(each, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}")


@lru_cache(maxsize=1024)
def lexer_error(pattern: str) -> str | None:
    """Return llguidance's error if the lexer of this pattern alone goes beyond the limits; None if it does not.

    Only the first bytes are read: a part that a text comes to later may still be too large.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False, initial_lexer_fuel=INITIAL_LEXER_FUEL)
    definition = LLMatcher.grammar_from_regex(pattern.removeprefix("^").removesuffix("$"))
    fresh = LLMatcher(_bytes(), definition, log_level=0, limits=limits)
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
            return matcher.get_error()
    return None


@lru_cache(maxsize=1)
def _bytes() -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
