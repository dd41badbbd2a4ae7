"""OpenAI batch input: one request a line, translated into a prompt or messages and our sampling parameters.

Format: https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import RowError, wrong_type
from pipeline.inputs.chat_fields import CHAT_FIELDS, chat_fields
from pipeline.inputs.response_format import FIELDS, FormatError, structured_of

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"

# Parameters that have the same name in SamplingParams; the other lines are what vLLM and others add to the protocol.
_SAME_NAME = frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "max_tokens"})
_SAME_NAME |= {"stop", "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos"}
_SAME_NAME |= {"allowed_token_ids", "bad_words"}
# Fields about the customer, the purpose and the bill, which cannot change the text.
_NO_EFFECT = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier"})
_NO_EFFECT |= {"prompt_cache_key", "parallel_tool_calls"}
_TRANSLATED = frozenset({"messages", "prompt", "max_completion_tokens", "logit_bias", "logprobs", "top_logprobs"})
_TRANSLATED |= set(FIELDS)
# Values of unsupported fields that ask for nothing.
_TRIVIAL: Mapping[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
}


def custom_id(line: Mapping[str, Any]) -> str:
    """Return the id of a line. Raises RowError if it has none."""
    value = line.get("custom_id")
    if not isinstance(value, str) or not value:
        raise RowError("read", f"custom_id: expected a string, got {value!r}", "TypeError")
    return value


def read_request(line: Mapping[str, Any]) -> tuple[str | None, list[Any] | None, dict[str, Any], dict[str, Any]]:
    """Return (prompt, messages, overrides, chat fields) of the request on a line; one of the first two is None.

    Overrides have the names of SamplingParams, and chat fields those of `chat_fields`. Raises RowError naming a field
    that is wrong or not supported.
    """
    url, body, method = line.get("url"), line.get("body"), line.get("method", "POST")
    if url not in (CHAT_URL, COMPLETIONS_URL):
        raise RowError("read", f"url: expected {CHAT_URL} or {COMPLETIONS_URL}, got {url!r}")
    if method != "POST":
        raise RowError("read", f"method: expected 'POST', got {method!r}")
    if not isinstance(body, dict):
        raise wrong_type("read", "body", "an object", body)
    overrides = _overrides(body, is_chat=url == CHAT_URL)
    if url == CHAT_URL:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise wrong_type("read", "body.messages", "a list", messages)
        return None, messages, overrides, chat_fields(body, "body.")
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise RowError(
            "read",
            f"body.prompt: expected one string, got {type(prompt).__name__}; give each prompt its own line",
            "TypeError",
        )
    return prompt, None, overrides, {}


def _is_trivial(name: str, value: Any) -> bool:
    """Tell whether a field asks for nothing. A zero is no false: it may be a wish."""
    return value is False or value in ("", [], {}) or value in _TRIVIAL.get(name, ())


def _overrides(body: Mapping[str, Any], is_chat: bool) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in _NO_EFFECT or (is_chat and name in CHAT_FIELDS):
            continue
        if name in _SAME_NAME:
            overrides[name] = value
        elif name not in _TRANSLATED and not _is_trivial(name, value):
            raise RowError("params", f"body.{name} is not supported (got {str(value)[:80]}); leave it out")
    if body.get("messages" if not is_chat else "prompt") is not None:
        raise RowError("params", f"body has {'prompt' if is_chat else 'messages'}, which its url does not take")
    limit = body.get("max_completion_tokens")
    if limit is not None and overrides.setdefault("max_tokens", limit) != limit:
        raise RowError("params", "body.max_tokens and body.max_completion_tokens differ; give one of them")
    if (bias := body.get("logit_bias")) is not None:
        overrides["logit_bias"] = _logit_bias(bias)
    try:
        structured = structured_of(body)
    except FormatError as error:
        raise RowError("params", f"body.{error}") from error
    if structured is not None:
        overrides["structured"] = structured
    elif body.get("response_format") is not None:  # it asks for text, whatever the form of the run
        overrides["structured"] = False
    logprobs = _chat_logprobs(body) if is_chat else body.get("logprobs")
    if logprobs is not None:
        overrides["logprobs"] = logprobs
    return overrides


def _chat_logprobs(body: Mapping[str, Any]) -> Any:
    """Return how many alternatives a chat request wants: None for no logprobs, 0 for those of the chosen tokens."""
    wanted, num_top = body.get("logprobs"), body.get("top_logprobs")
    if wanted not in (None, False, True):
        raise RowError("params", f"body.logprobs: expected true or false, got {wanted!r}", "TypeError")
    if not wanted and num_top:
        raise RowError("params", "body.top_logprobs needs body.logprobs to be true")
    return (num_top or 0) if wanted else None


def _logit_bias(bias: Any) -> dict[int, Any]:
    """Return the bias of each token id; in JSON the ids are strings."""
    if not isinstance(bias, dict):
        raise wrong_type("params", "body.logit_bias", "an object", bias)
    try:
        return {int(token_id): value for token_id, value in bias.items()}
    except ValueError as error:
        raise RowError("params", f"body.logit_bias: its keys are token ids, {error}") from error
