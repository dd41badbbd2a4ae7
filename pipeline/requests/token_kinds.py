"""Kinds of values that are about tokens and texts: prompts, stop strings, biases, and what may not be written."""

from __future__ import annotations

from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.body import (
    BOOLEAN,
    LARGEST,
    LIST,
    OBJECT,
    TEXT,
    Kind,
    Schema,
    anything,
    check_number,
    integer,
    list_of,
    number,
    one_of,
    options,
    text,
)

_MAX_PROMPTS, _MAX_MESSAGES = 4096, 65_536
_MAX_BIASES = 1024  # as in vLLM
_MAX_ALLOWED = 1 << 18  # token ids: more than any vocabulary has


def check_token_ids(where: str, token_ids: list[Any], vocab_size: int) -> None:
    """Raise FieldError for the first entry that is no token id of the model. Check their number before calling this.

    The usual case takes three passes at the speed of C; each entry is looked at only to name the one that is wrong.
    """
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id <= LARGEST:
            raise FieldError(f"{where}[{index}]", f"a token id is an integer from 0 to {LARGEST}")
        if token_id >= vocab_size:
            raise outside_vocabulary(where, token_id, vocab_size)


def outside_vocabulary(where: str, token_id: int, vocab_size: int) -> FieldError:
    """Return the error for a token id that the model does not have."""
    return FieldError(where, f"token id {token_id} is outside the model's vocabulary of {vocab_size}")


def _prompts(where: str, value: Any) -> Any:
    """Return a prompt that has one of the four forms, recognized by its first entry.

    Token ids are checked later, when it is known that there are not too many of them.
    """
    if isinstance(value, str):
        return value
    what = "expected a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(value, list):
        raise FieldError(where, what)
    if not value:
        raise FieldError(where, "the list is empty")
    form = type(value[0])
    if form is int:
        return value
    if form not in (str, list):
        raise FieldError(f"{where}[0]", what)
    check_number(where, value, _MAX_PROMPTS, "prompts")
    for index, entry in enumerate(value):
        if type(entry) is not form or entry == []:
            raise FieldError(f"{where}[{index}]", "the list is empty" if entry == [] else what)
    return value


def _messages(where: str, value: Any) -> list[Any]:
    """Return messages; what they hold is checked where a prompt is made of them."""
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of at least one message")
    check_number(where, value, _MAX_MESSAGES, "messages")
    return value


def _stops(where: str, value: Any) -> Any:
    if isinstance(value, str):
        return [_STOP.read(where, value)]
    if not isinstance(value, list):
        raise FieldError(where, "expected a string or a list of strings")
    return _STOP_LIST.read(where, value)


def _biases(where: str, value: Any) -> dict[int, float]:
    """Return numbers by token ids, which are strings in JSON."""
    what = "expected an object from token ids to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise FieldError(where, what)
    check_number(where, value, _MAX_BIASES, "tokens")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= len(str(LARGEST)) and int(key) <= LARGEST
        if not is_id or type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise FieldError(where, what)
        biases[int(key)] = bias
    if len(biases) < len(value):
        raise FieldError(where, "it names a token twice (01 is 1)")
    return biases


def _allowed_ids(where: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of token ids that is not empty")
    check_number(where, value, _MAX_ALLOWED, "token ids")
    check_token_ids(where, value, LARGEST + 1)
    return value


def _one_of_schemas(*kinds: Kind) -> Schema:
    return {"anyOf": [kind.schema for kind in kinds]}


_STOP = text(1000, least=1)
_STOP_LIST = list_of(_STOP, 4)
_IDS = list_of(integer(ge=0))
_FUNCTION = one_of("function")
_CALL = options(
    *("id", "type", "function"),
    id=TEXT,
    type=_FUNCTION,
    function=options("name", "arguments", name=TEXT, arguments=TEXT),
)
_PART = options("type", "text", type=one_of("text"), text=TEXT)
_MESSAGE = options(
    "role",
    role=one_of("system", "developer", "user", "assistant", "tool"),
    content=anything(_one_of_schemas(TEXT, list_of(_PART))),
    tool_calls=list_of(_CALL),
    **dict.fromkeys(("name", "tool_call_id", "reasoning", "reasoning_content"), TEXT),
)
_DECLARED = options("name", name=TEXT, description=TEXT, parameters=OBJECT, strict=BOOLEAN)
_NAMED = options("type", "function", type=_FUNCTION, function=options("name", name=TEXT))

PROMPTS = Kind(_prompts, _one_of_schemas(TEXT, list_of(TEXT), _IDS, list_of(_IDS)))
TOKEN_IDS = Kind(LIST.read, _IDS.schema)
MESSAGES = Kind(_messages, list_of(_MESSAGE).schema)
STOPS = Kind(_stops, _one_of_schemas(_STOP, _STOP_LIST))
BIASES = Kind(_biases, {"type": "object", "additionalProperties": number(ge=-100, le=100).schema})
ALLOWED_IDS = Kind(_allowed_ids, {**_IDS.schema, "minItems": 1})
BAD_WORDS = list_of(text(100, least=1), 1000)
# Of fields whose values are checked where a prompt is made of them.
TOOLS = list_of(options("type", "function", type=_FUNCTION, function=_DECLARED)).schema
TOOL_CHOICE = _one_of_schemas(one_of("none", "auto", "required"), _NAMED)
