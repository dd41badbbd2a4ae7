"""Kinds of values that are about tokens and texts: prompts, stop strings, biases, and what may not be written."""

from __future__ import annotations

from typing import Any

from pipeline.errors import FieldError
from pipeline.requests.kinds import LARGEST, Kind, Schema

_MAX_PROMPTS, _MAX_MESSAGES = 4096, 65_536
_MAX_STOPS, _MAX_STOP_CHARACTERS = 4, 1000
_MAX_BIASES = 1024  # as in vLLM
_MAX_ALLOWED = 1 << 18  # token ids: more than any vocabulary has
_MAX_BAD_WORDS, _MAX_BAD_CHARACTERS = 1000, 100


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
    if len(value) > _MAX_PROMPTS:
        raise FieldError(where, f"expected at most {_MAX_PROMPTS} prompts, got {len(value)}")
    for index, entry in enumerate(value):
        if type(entry) is not form or entry == []:
            raise FieldError(f"{where}[{index}]", "the list is empty" if entry == [] else what)
    return value


def _token_ids(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(where, "expected a list")
    return value


def _messages(where: str, value: Any) -> list[Any]:
    """Return messages; what they hold is checked where a prompt is made of them."""
    if not isinstance(value, list) or not value:
        raise FieldError(where, "expected a list of at least one message")
    if len(value) > _MAX_MESSAGES:
        raise FieldError(where, f"expected at most {_MAX_MESSAGES} messages, got {len(value)}")
    return value


def _stops(where: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise FieldError(where, f"expected a string or a list of at most {_MAX_STOPS} strings")
    if len(stops) > _MAX_STOPS:
        raise FieldError(where, f"expected at most {_MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= _MAX_STOP_CHARACTERS:
            raise FieldError(where, f"expected strings of 1 to {_MAX_STOP_CHARACTERS} characters, got {len(stop)}")
    return stops


def _biases(where: str, value: Any) -> dict[int, float]:
    """Return numbers by token ids, which are strings in JSON."""
    what = "expected an object from token ids to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise FieldError(where, what)
    if len(value) > _MAX_BIASES:
        raise FieldError(where, f"expected at most {_MAX_BIASES} tokens, got {len(value)}")
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
    if len(value) > _MAX_ALLOWED:
        raise FieldError(where, f"expected at most {_MAX_ALLOWED} token ids, got {len(value)}")
    check_token_ids(where, value, LARGEST + 1)
    return value


def _bad_words(where: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise FieldError(where, f"expected a list of at most {_MAX_BAD_WORDS} strings")
    if len(value) > _MAX_BAD_WORDS:
        raise FieldError(where, f"expected at most {_MAX_BAD_WORDS} strings, got {len(value)}")
    for index, word in enumerate(value):
        if not 1 <= len(word) <= _MAX_BAD_CHARACTERS:
            what = f"expected a string of 1 to {_MAX_BAD_CHARACTERS} characters, got {len(word)}"
            raise FieldError(f"{where}[{index}]", what)
    return value


def _object(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


_TEXT, _TYPE = {"type": "string"}, {"const": "function"}
_CALLED = _object("name", "arguments", name=_TEXT, arguments=_TEXT)
_PART = _object("type", "text", type={"const": "text"}, text=_TEXT)
_MESSAGE = _object(
    "role",
    role={"enum": ["system", "developer", "user", "assistant", "tool"]},
    content={"anyOf": [_TEXT, _list(_PART), {"type": "null"}]},
    name=_TEXT,
    tool_calls=_list(_object("id", "type", "function", id=_TEXT, type=_TYPE, function=_CALLED)),
    tool_call_id=_TEXT,
    reasoning=_TEXT,
    reasoning_content=_TEXT,
)
_FUNCTION = _object("name", name=_TEXT, description=_TEXT, parameters={"type": "object"}, strict={"type": "boolean"})
_NAMED = _object("type", "function", type=_TYPE, function=_object("name", name=_TEXT))
_IDS = _list({"type": "integer", "minimum": 0, "maximum": LARGEST})
_STOP = {**_TEXT, "minLength": 1, "maxLength": _MAX_STOP_CHARACTERS}
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}

PROMPTS = Kind(_prompts, {"anyOf": [_TEXT, _list(_TEXT), _IDS, _list(_IDS)]})
TOKEN_IDS = Kind(_token_ids, _IDS)
MESSAGES = Kind(_messages, _list(_MESSAGE))
STOPS = Kind(_stops, {"anyOf": [_STOP, _list(_STOP, maxItems=_MAX_STOPS)]})
BIASES = Kind(_biases, {"type": "object", "additionalProperties": _BIAS})
ALLOWED_IDS = Kind(_allowed_ids, {**_IDS, "minItems": 1})
BAD_WORDS = Kind(
    _bad_words, _list({**_TEXT, "minLength": 1, "maxLength": _MAX_BAD_CHARACTERS}, maxItems=_MAX_BAD_WORDS)
)
# Of fields whose values are checked where a prompt is made of them.
TOOLS = _list(_object("type", "function", type=_TYPE, function=_FUNCTION))
TOOL_CHOICE: Schema = {"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED]}
