"""Fields of a request: the types that requests share, the checks of what a field holds, and the errors that name it."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from endpoint.http.errors import ApiError
from pipeline.errors import FieldError

LARGEST = 2**31 - 1
_MAX_PROMPTS = 4096
_MAX_STOPS, _MAX_STOP_CHARACTERS = 4, 1000
_MAX_BIASES = 1024  # as in vLLM
_MAX_ALLOWED = 1 << 18  # token ids: more than any vocabulary has
_MAX_BAD_WORDS, _MAX_BAD_CHARACTERS = 1000, 100
_SURROGATE = re.compile("[\ud800-\udfff]")


class Strict(BaseModel):
    """An object of a body, which may hold no other fields and nothing that would have to be converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Return the error for a field that does not hold what it must."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def unsupported(param: str, why: str = "this server does not support it; leave it out") -> ApiError:
    """Return the error for a field that this server knows but cannot honour."""
    return wrong(param, why, "unsupported_parameter")


def field_error(error: FieldError) -> ApiError:
    """Return the error for a field that a chat cannot be made of."""
    return (unsupported if error.is_unsupported else wrong)(error.where, error.reason)


def check_text(param: str, text: str) -> None:
    """Raise ApiError for text that UTF-8 cannot encode."""
    if not text.isascii() and _SURROGATE.search(text):
        raise wrong(param, "it holds half a surrogate pair, which is no character")


def check_token_ids(param: str, token_ids: list[Any], vocab_size: int) -> None:
    """Raise ApiError for the first entry that is no token id of the model. Check their number before calling this.

    The usual case takes three passes at the speed of C; each entry is looked at only to name the one that is wrong.
    """
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id <= LARGEST:
            raise wrong(f"{param}[{index}]", f"a token id is an integer from 0 to {LARGEST}")
        if token_id >= vocab_size:
            raise outside_vocabulary(param, token_id, vocab_size)


def outside_vocabulary(param: str, token_id: int, vocab_size: int) -> ApiError:
    """Return the error for a token id that the model does not have."""
    return wrong(param, f"token id {token_id} is outside the model's vocabulary of {vocab_size}")


def _checked_prompt(value: Any) -> Any:
    """Return a prompt that has one of the four forms, recognized by its first entry.

    Token ids are checked later, when it is known that there are not too many of them.
    """
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
    if len(value) > _MAX_PROMPTS:
        raise wrong("prompt", f"expected at most {_MAX_PROMPTS} prompts, got {len(value)}")
    for index, entry in enumerate(value):
        if type(entry) is not form:
            raise wrong(f"prompt[{index}]", what)
        if isinstance(entry, str):
            check_text(f"prompt[{index}]", entry)
        elif not entry:
            raise wrong(f"prompt[{index}]", "the list is empty")
    return value


def _checked_ids(value: Any) -> Any:
    if not isinstance(value, list):
        raise wrong("tokens", "expected a list")
    return value


def _checked_stop(value: Any) -> Any:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("stop", f"expected a string or a list of at most {_MAX_STOPS} strings")
    if len(stops) > _MAX_STOPS:
        raise wrong("stop", f"expected at most {_MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        check_text("stop", stop)
        if not 1 <= len(stop) <= _MAX_STOP_CHARACTERS:
            raise wrong("stop", f"expected strings of 1 to {_MAX_STOP_CHARACTERS} characters, got {len(stop)}")
    return stops


def _checked_bias(value: Any) -> Any:
    if value is None:
        return {}
    what = "expected an object from token ids to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise wrong("logit_bias", what)
    if len(value) > _MAX_BIASES:
        raise wrong("logit_bias", f"expected at most {_MAX_BIASES} tokens, got {len(value)}")
    for key, bias in value.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= len(str(LARGEST)) and int(key) <= LARGEST
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_id or not is_number or not -100 <= bias <= 100:
            raise wrong("logit_bias", what)
    if len({int(key) for key in value}) < len(value):
        raise wrong("logit_bias", "it names a token twice (01 is 1)")
    return value


def _checked_allowed(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise wrong("allowed_token_ids", "expected a list of token ids that is not empty")
    if len(value) > _MAX_ALLOWED:
        raise wrong("allowed_token_ids", f"expected at most {_MAX_ALLOWED} token ids, got {len(value)}")
    check_token_ids("allowed_token_ids", value, LARGEST + 1)
    return value


def _checked_bad_words(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise wrong("bad_words", f"expected a list of at most {_MAX_BAD_WORDS} strings")
    if len(value) > _MAX_BAD_WORDS:
        raise wrong("bad_words", f"expected at most {_MAX_BAD_WORDS} strings, got {len(value)}")
    for index, word in enumerate(value):
        check_text(f"bad_words[{index}]", word)
        if not 1 <= len(word) <= _MAX_BAD_CHARACTERS:
            what = f"expected a string of 1 to {_MAX_BAD_CHARACTERS} characters, got {len(word)}"
            raise wrong(f"bad_words[{index}]", what)
    return value


TokenId = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ModelName = Annotated[str, Field(max_length=512)]
Stop = Annotated[list[str], BeforeValidator(_checked_stop)]
LogitBias = Annotated[dict[str, float], BeforeValidator(_checked_bias)]
BadWords = Annotated[list[str], BeforeValidator(_checked_bad_words)]
AllowedIds = Annotated[list[Any] | None, PlainValidator(_checked_allowed, json_schema_input_type=list[TokenId] | None)]
# Never a union whose members are tried one by one: over millions of ids it would keep an error for each id and member.
Prompt = Annotated[
    str | list[str] | list[Any] | list[list[Any]],
    PlainValidator(_checked_prompt, json_schema_input_type=str | list[str] | list[TokenId] | list[list[TokenId]]),
]
TokenIds = Annotated[list[Any], PlainValidator(_checked_ids, json_schema_input_type=list[TokenId])]
