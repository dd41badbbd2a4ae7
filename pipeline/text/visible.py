"""Text from rows as a terminal may show it: nothing in it controls the terminal, or moves what stands beside it."""

import re

_ESCAPES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; escape sequences begin with one
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates: they reorder the rest of a line
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff]"  # surrogates, which no encoding can write
)


def visible(text: str) -> str:
    """Return the text with a picture in place of each character that a terminal would obey.

    Control characters below the space have pictures of their own (U+241B for Escape), all others become U+FFFD. Tabs,
    line feeds, spaces of every kind, joiners, and the marks of right-to-left text (U+200E, U+200F, U+061C) stay: they
    change nothing beyond the words that they stand in.
    """
    return _ESCAPES.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 32 else "\N{SYMBOL FOR DELETE}" if code == 127 else "\N{REPLACEMENT CHARACTER}"
