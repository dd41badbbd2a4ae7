"""An error of the library llguidance as a user reads it: one line, what was wrong, and what to do."""

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


def in_one_line(message: str) -> str:
    """Return an error of llguidance without its drawings of the place and without line breaks, cut if it is long."""
    lines = [line.strip() for line in message.splitlines()]
    told = [line for line in lines if line.strip("^| ") and line != "<non-verbose/>"]
    said = "; ".join(_cut(line, _MAX_LINE, _MAX_END) for line in told)
    advice = next((advice for words, advice in _ADVICE.items() if words in message), None)
    return _cut(said, _MAX_MESSAGE) + (f" ({advice})" if advice else "")


def _cut(text: str, length: int, of_end: int = 0) -> str:
    return text if len(text) <= length else f"{text[: length - of_end]}...{text[len(text) - of_end :]}"
