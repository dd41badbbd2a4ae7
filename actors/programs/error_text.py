"""The text of an error that code of a user has raised: it may be of a class of the user, which can fail to say it."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the message of an error; an empty text if it has none, or if making it raises anything at all."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - code of the user: it may raise SystemExit, which would end the event loop
        return ""
