"""Token ids that a client sent: looked at once, at the speed of C, and only where there are not too many of them."""

from __future__ import annotations

from typing import Any

from endpoint.http.errors import ApiError
from endpoint.requests.fields import LARGEST, wrong


def check_token_ids(param: str, token_ids: list[Any], vocab_size: int) -> None:
    """Raise ApiError for the first entry that is no token id of the model. Have their number checked before."""
    if not token_ids:
        return
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id <= LARGEST:
            raise wrong(f"{param}[{index}]", f"a token id is an integer from 0 to {LARGEST}")
        if token_id >= vocab_size:
            raise outside_vocabulary(param, token_id, vocab_size)


def outside_vocabulary(param: str, token_id: int, vocab_size: int) -> ApiError:
    """The answer to a token id that the model does not have."""
    return wrong(param, f"token id {token_id} is outside the model's vocabulary of {vocab_size}")
