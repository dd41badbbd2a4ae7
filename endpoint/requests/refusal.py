"""Refusal: what an engine or a tokenizer says of sampling parameters, as the error of the request's own field."""

from __future__ import annotations

from endpoint.http.errors import ApiError, wrong

_PREFIX, _FORM = "sampling.", "sampling.structured"


def refusal(message: str, form_field: str | None) -> ApiError:
    """Return the error (400) for a message that may begin with the path of a parameter ("sampling.structured.regex").

    `form_field` is the path of the field by which the request asks for a form; None if it has none, so that a grammar
    is that of its tools.
    """
    if message.startswith(_FORM):
        path, _, said = message.partition(" ")
        where = form_field or "tools"
        if path == _FORM:  # of the whole form, and of no kind of it
            where = where.partition(".")[0]
        return wrong(where, said if path.endswith(":") else f"it {said}")
    is_named = message.startswith(_PREFIX) and " " in message
    param, _, said = message.removeprefix(_PREFIX).partition(" ")
    if said.startswith("leaves "):
        said = f"it {said}; change it"
    elif said.startswith("and "):  # several parameters leave nothing together
        said = f"it {said}; change one of them"
    said = said.replace(_FORM, form_field or "tools").replace(_PREFIX, "")
    if is_named:
        return wrong(param.rstrip(":"), said)
    return ApiError(400, message.replace(_FORM, form_field or "tools").replace(_PREFIX, ""), code="invalid_value")
