"""The prompt of a completion, and token ids: told by the first entry, and not read where there may be millions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from endpoint.requests.fields import TokenId, check_text, wrong

_MOST_PROMPTS = 4096


def _checked_prompt(value: Any) -> Any:
    """One of the four forms, told by the first entry. What token ids hold is looked at where their number is known."""
    if isinstance(value, str):
        check_text("prompt", value)
        return value
    what = "expected a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(value, list):
        raise wrong("prompt", what)
    if not value:
        raise wrong("prompt", "the list is empty")
    form = type(value[0])
    if form is int:
        return value
    if form not in (str, list):
        raise wrong("prompt[0]", what)
    if len(value) > _MOST_PROMPTS:
        raise wrong("prompt", f"expected at most {_MOST_PROMPTS} prompts, got {len(value)}")
    for index, entry in enumerate(value):
        if type(entry) is not form:
            raise wrong(f"prompt[{index}]", what)
        if isinstance(entry, str):
            check_text(f"prompt[{index}]", entry)
        elif not entry:
            raise wrong(f"prompt[{index}]", "the list is empty")
    return value


def _checked_ids(value: Any) -> Any:
    """A list; what it holds is looked at where its length is known to be bearable."""
    if not isinstance(value, list):
        raise wrong("tokens", "expected a list")
    return value


# Never a union that tries each form: over millions of ids it would keep an error for each and every form.
Prompt = Annotated[
    str | list[str] | list[Any] | list[list[Any]],
    PlainValidator(_checked_prompt, json_schema_input_type=str | list[str] | list[TokenId] | list[list[TokenId]]),
]
TokenIds = Annotated[list[Any], PlainValidator(_checked_ids, json_schema_input_type=list[TokenId])]
