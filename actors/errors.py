"""Errors as a person reads them."""

import ray


def describe(error: BaseException) -> str:
    """Return an exception's message; a type comes before it unless it is a ValueError, whose message says enough."""
    if isinstance(error, ray.exceptions.RayTaskError):  # an actor's exception, wrapped in a traceback
        error = error.cause
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
