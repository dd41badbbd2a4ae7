"""Names that a client sent, as errors may show them: short, printable, and in ASCII."""

from __future__ import annotations

_MAX_CHARS = 64


def shown_name(name: str, max_chars: int = _MAX_CHARS) -> str:
    """The name's first characters; those that are not printable ASCII as Python escapes them."""
    return "".join(
        character if character.isascii() and character.isprintable() else ascii(character)[1:-1]
        for character in name[:max_chars]
    )
