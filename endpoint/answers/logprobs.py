"""Log-probabilities in the forms of the two APIs."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from decoding.sequence import TokenLogprobs
from pipeline.text.codec import TextCodec

_LOWEST = -9999.0  # JSON has no infinity


def completion_logprobs(
    codec: TextCodec, token_ids: Seq[int], logprobs: Seq[TokenLogprobs | None], offsets: Seq[int], num_top: int
) -> dict[str, Any]:
    """Return four lists with an entry for each token, which is None for a token that has no token before it.

    Its alternatives are the `num_top` likeliest tokens and the token itself. Of those that are written alike the most
    likely one is shown.
    """
    tops: list[dict[str, float] | None] = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        if entry is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for other, value in (*entry.top[:num_top], (token_id, entry.logprob)):
            top.setdefault(_written(codec, other), finite(value))
        tops.append(top)
    return {
        "tokens": [_written(codec, token_id) for token_id in token_ids],
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in logprobs],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def chat_logprobs(codec: TextCodec, token_ids: Seq[int], logprobs: Seq[TokenLogprobs]) -> dict[str, Any]:
    """Return a list with an object for each token."""
    content = [
        {
            **_chat_entry(codec, token_id, entry.logprob),
            "top_logprobs": [_chat_entry(codec, other, value) for other, value in entry.top],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _chat_entry(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    token_bytes = codec.token_bytes(token_id)
    return {
        "token": codec.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": None if token_bytes is None else list(token_bytes),
    }


def _written(codec: TextCodec, token_id: int) -> str:
    """Return a token's text, or its bytes in OpenAI's notation if they are a part of a character.

    The replacement character would be the same for all such tokens.
    """
    text = codec.token_text(token_id)
    token_bytes = codec.token_bytes(token_id) if "\ufffd" in text else None
    return text if token_bytes is None else "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def finite(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(logprob, _LOWEST)
