"""Stop strings and biases, as a request may give them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from endpoint.requests.fields import LARGEST, check_text, wrong

_MOST_BIASES = 1024  # as vLLM
_MOST_STOPS = 4
_MOST_CHARACTERS = 1000


def _checked_stop(value: Any) -> Any:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("stop", f"expected a string or a list of at most {_MOST_STOPS} strings")
    if len(stops) > _MOST_STOPS:
        raise wrong("stop", f"expected at most {_MOST_STOPS} strings, got {len(stops)}")
    for stop in stops:
        check_text("stop", stop)
        if not 1 <= len(stop) <= _MOST_CHARACTERS:
            raise wrong("stop", f"expected strings of 1 to {_MOST_CHARACTERS} characters, got {len(stop)}")
    return stops


def _checked_bias(value: Any) -> Any:
    if value is None:
        return {}
    what = "expected an object from token ids to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise wrong("logit_bias", what)
    if len(value) > _MOST_BIASES:
        raise wrong("logit_bias", f"expected at most {_MOST_BIASES} tokens, got {len(value)}")
    for key, bias in value.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= len(str(LARGEST)) and int(key) <= LARGEST
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_id or not is_number or not -100 <= bias <= 100:
            raise wrong("logit_bias", what)
    if len({int(key) for key in value}) < len(value):
        raise wrong("logit_bias", "it names a token twice (01 is 1)")
    return value


Stop = Annotated[list[str], BeforeValidator(_checked_stop)]
LogitBias = Annotated[dict[str, float], BeforeValidator(_checked_bias)]
