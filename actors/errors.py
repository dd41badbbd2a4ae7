"""Errors as a person reads them."""

import ray


class DeviceFault(RuntimeError):
    """A GPU failed. Its process can compute nothing more."""


def describe(error: BaseException) -> str:
    """Return an exception's message; a type comes before it unless it is a ValueError, whose message says enough."""
    if isinstance(error, ray.exceptions.RayTaskError):  # an actor's exception, wrapped in a traceback
        error = error.cause
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def text_of(error: BaseException) -> str:
    """Return the message of an error; an empty text if it has none, or if making it raises anything at all."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - code of the user: it may raise SystemExit, which would end the event loop
        return ""
