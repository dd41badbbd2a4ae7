"""Kinds of values that are about tokens and texts: prompts, stop strings, biases, forms, and what may not be written.

The form of an output is OpenAI's `response_format` (https://platform.openai.com/docs/api-reference/chat/create), or
vLLM's `structured_outputs` and the older `guided_*` (https://docs.vllm.ai/en/latest/features/structured_outputs).
"""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import FieldError, shown_name
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
FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_VLLM = {  # vLLM's names, and ours
    "json": "json_schema",
    **{name: name for name in ("json_object", "regex", "choice", "grammar", "disable_any_whitespace")},
}
_FLAGS = ("json_object", "disable_any_whitespace")  # false asks for nothing
_KINDS: Mapping[type, str] = {  # as JSON calls them
    **dict.fromkeys((int, float), "a number"),
    **{type(None): "null", bool: "true or false", str: "a string", list: "a list"},
}
_OF_SCHEMA = {"name", "description", "schema", "strict"}  # a schema is always kept to, as with strict
_SCHEMA = "response_format.json_schema"
Form = tuple[str, dict[str, Any]]


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


def form_of(fields: Mapping[str, Any]) -> Form | None:
    """Return the form that the fields of a body ask for; None without one. Fields that are None are left out.

    It is the path of the field that says what the form is ("structured_outputs.regex"), and what `sampling.structured`
    is for it, which is checked where sampling parameters are made. Raises FieldError.
    """
    found = {name: _form(name, value) for name, value in fields.items()}
    asked = {name: form for name, form in found.items() if form is not None}
    if len(asked) > 1:
        first, second, *_ = asked
        raise FieldError(second, f"the body has {first}, too; give one of them")
    return next(iter(asked.values()), None)


def _form(name: str, value: Any) -> Form | None:
    if name == "response_format":
        return _of_response_format(value)
    if name == "structured_outputs":
        return _of_vllm(value)
    return name, {_VLLM[name.removeprefix("guided_")]: value}


def _of_response_format(value: Mapping[str, Any]) -> Form | None:
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise FieldError("response_format.type", f"expected text, json_object or json_schema, got {str(kind)[:80]!r}")
    if unknown := sorted(value.keys() - ({"type", "json_schema"} if kind == "json_schema" else {"type"})):
        raise FieldError(f"response_format.{shown_name(unknown[0])}", f"there is no such field with type {kind!r}")
    if kind == "text":
        return None
    if kind == "json_object":
        return "response_format", {"json_object": True}
    inner = _object(_SCHEMA, value.get("json_schema"))
    if unknown := sorted(inner.keys() - _OF_SCHEMA):
        raise FieldError(f"{_SCHEMA}.{shown_name(unknown[0])}", "there is no such field")
    return f"{_SCHEMA}.schema", {"json_schema": _object(f"{_SCHEMA}.schema", inner.get("schema"))}


def _of_vllm(value: Mapping[str, Any]) -> Form | None:
    given = {k: each for k, each in value.items() if each is not None and not (each is False and k in _FLAGS)}
    if unknown := sorted(given.keys() - _VLLM.keys()):
        where = f"structured_outputs.{shown_name(unknown[0])}"
        raise FieldError(where, f"it is not supported; supported are {', '.join(_VLLM)}")
    form = {ours: given[name] for name, ours in _VLLM.items() if name in given}
    first = next((name for name in _VLLM if name in given), None)
    return None if first is None else (f"structured_outputs.{first}", form)


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(where, f"expected an object, got {_KINDS[type(value)]}")
    return value
