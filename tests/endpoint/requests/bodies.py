"""Bodies of requests, each with the one answer of jobs, batches and the endpoint: a text, or a refusal by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hi"}
_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 3, "temperature": 0},
    COMPLETIONS: {"prompt": "Once", "max_tokens": 3, "temperature": 0},
}
_F = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}
UNSUPPORTED = "this server does not support it; leave it out"
UNKNOWN = "there is no such field"
BOOLEAN, INTEGER, NUMBER, STRING = (
    "expected true or false",
    "expected an integer",
    "expected a number",
    "expected a string",
)
_BIAS = "expected an object from token ids to numbers from -100 to 100"
OUTSIDE = "token id 99999 is outside the model's vocabulary of 3072"
_STOPS = "expected strings of 1 to 1000 characters, got 0"


@dataclass(frozen=True)
class Case:
    """A body of a url. `refused` is the path of the field and the reason; None where it is answered.

    `in_batches` is the same for rows of batches, where these cannot have what the endpoint gives.
    """

    name: str
    url: str
    body: dict[str, Any]
    refused: tuple[str, str] | None = None
    in_batches: tuple[str, str] | None = None

    @property
    def refused_in_batches(self) -> tuple[str, str] | None:
        """What a row of a batch is refused for."""
        return self.in_batches or self.refused


def _cases(url: str, *rows: tuple[Any, ...]) -> list[Case]:
    """Cases of a url: the fields that differ from a good body's, and what they are refused for."""
    found = []
    for number, (fields, *ends) in enumerate(rows):
        body = {name: value for name, value in {**_BODIES[url], **fields}.items() if value is not ...}
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in fields.items())
        found.append(Case(f"{'chat' if url == CHAT else 'completion'} {number}: {shown}", url, body, *ends))
    return found


def _both(*rows: tuple[Any, ...]) -> list[Case]:
    return [*_cases(CHAT, *rows), *_cases(COMPLETIONS, *rows)]


def _no(param: str, reason: str) -> tuple[str, str]:
    return param, reason


def _unsupported(*fields: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each, (next(iter(each)), UNSUPPORTED)) for each in fields]


def _unknown(*fields: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each, (next(iter(each)), UNKNOWN)) for each in fields]


def _answered(*fields: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each,) for each in fields]


CASES = [
    *_both(
        # Values that ask for nothing, and numbers in another spelling.
        *_answered({}, {"top_k": -1}, {"top_k": 0}, {"top_k": None}, {"skip_special_tokens": True}, {"stream": False}),
        *_answered({"include_stop_str_in_output": False}, {"return_token_ids": False}, {"store": False}, {"n": 1}),
        *_answered({"seed": 7.0}, {"seed": 2**63}, {"seed": -(2**63)}, {"n": 2.0, "temperature": 1, "seed": 3}),
        *_answered(
            {"max_tokens": 2.0},
            {"min_tokens": 1.0},
            {"top_k": 5.0},
            {"temperature": -0.0},
            {"temperature": 2, "seed": 1},
        ),
        *_answered({"stop": None}, {"stop": []}, {"stop": "zz"}, {"stop": ["a1", "b1", "c1", "d1"]}),
        *_answered({"documents": []}, {"priority": 0}, {"functions": []}, {"function_call": "none"}, {"suffix": ""}),
        *_answered({"tools": []}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}, {"modalities": ["text"]}),
        *_answered({"service_tier": "auto"}, {"metadata": {"a": "b"}}, {"user": "u"}, {"no_such_field": None}),
        *_answered({"logit_bias": {}}, {"logit_bias": {"5": -100.0}}, {"bad_words": []}, {"stop_token_ids": [7]}),
        *_answered({"response_format": {"type": "text"}}, {"guided_regex": "[ab]"}, {"stream_options": None}),
        *_answered({"structured_outputs": {}}, {"structured_outputs": {"choice": ["yes"]}}),
        *_answered({"truncate_prompt_tokens": 50}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 1}),
        *_answered({"num_speculative_tokens": 0}, {"num_speculative_tokens": 2}, {"ignore_eos": True}),
        *_answered({"skip_special_tokens": False, "max_tokens": 40}, {"stop": "a", "max_tokens": 40}),
        *_answered({"include_stop_str_in_output": True, "stop": "a", "max_tokens": 40}),
        *_answered({"repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "min_p": 0, "top_p": 1}),
        # What the API knows and Dray cannot do, and what is no field.
        *_unsupported({"store": True}, {"store": 0}, {"suffix": "end"}, {"functions": [{"name": "f"}]}),
        *_unsupported({"service_tier": "flex"}, {"modalities": ["audio"]}, {"audio": {}}, {"prediction": {}}),
        *_unsupported(
            {"verbosity": "low"}, {"web_search_options": {}}, {"documents": [{"text": "a"}]}, {"priority": 1}
        ),
        *_unsupported({"priority": False}, {"function_call": {"name": "f"}}, {"cache_salt": "a"}, {"moderation": {}}),
        *_unknown({"extra_body": {}}, {"no_such_field": False}, {"no_such_field": ""}, {"use_beam_search": False}),
        *_unknown({"structured": {"regex": "a"}}, {"max_output_tokens": 3}, {"input": "a"}, {"__class__": 1}),
        # Wrong values.
        ({"top_k": -2}, _no("top_k", "must be at least -1")),
        ({"top_k": 1.5}, _no("top_k", INTEGER)),
        ({"temperature": 0.001}, _no("temperature", "must be 0 (greedy) or a number from 0.01 to 100, got 0.001")),
        ({"temperature": 2.5}, _no("temperature", "must be at most 2")),
        ({"temperature": True}, _no("temperature", NUMBER)),
        ({"temperature": "1"}, _no("temperature", NUMBER)),
        ({"top_p": 0}, _no("top_p", "must be above 0")),
        ({"presence_penalty": 2.5}, _no("presence_penalty", "must be at most 2")),
        ({"n": 0}, _no("n", "must be at least 1")),
        ({"n": True}, _no("n", INTEGER)),
        ({"max_tokens": "5"}, _no("max_tokens", INTEGER)),
        ({"max_tokens": 2.5}, _no("max_tokens", INTEGER)),
        ({"max_tokens": 1e300}, _no("max_tokens", "must be at most 2147483647")),
        ({"min_tokens": 9}, _no("min_tokens", "must not exceed max_tokens, got 9 > 3")),
        ({"seed": 7.5}, _no("seed", INTEGER)),
        ({"seed": 2**64}, _no("seed", "must be below 18446744073709551616")),
        ({"seed": True}, _no("seed", INTEGER)),
        ({"stop": ""}, _no("stop", _STOPS)),
        ({"stop": [""]}, _no("stop", _STOPS)),
        ({"stop": ["a1", "b1", "c1", "d1", "e1"]}, _no("stop", "expected at most 4 strings, got 5")),
        ({"stop": 1}, _no("stop", "expected a string or a list of at most 4 strings")),
        ({"user": {"a": 1}}, _no("user", STRING)),
        ({"metadata": {"a": 1}}, _no("metadata.a", STRING)),
        ({"metadata": "a"}, _no("metadata", "expected an object")),
        ({"model": 5}, _no("model", STRING)),
        ({"logit_bias": {"x": 1}}, _no("logit_bias", _BIAS)),
        ({"logit_bias": {"-1": 1}}, _no("logit_bias", _BIAS)),
        ({"logit_bias": {"5": 101}}, _no("logit_bias", _BIAS)),
        ({"logit_bias": {"5": True}}, _no("logit_bias", _BIAS)),
        ({"logit_bias": {"1": 1, "01": 2}}, _no("logit_bias", "it names a token twice (01 is 1)")),
        ({"allowed_token_ids": []}, _no("allowed_token_ids", "expected a list of token ids that is not empty")),
        ({"bad_words": ["a", ""]}, _no("bad_words[1]", "expected a string of 1 to 100 characters, got 0")),
        ({"ignore_eos": 1}, _no("ignore_eos", BOOLEAN)),
        ({"skip_special_tokens": "no"}, _no("skip_special_tokens", BOOLEAN)),
        (
            {"truncate_prompt_tokens": 0},
            _no("truncate_prompt_tokens", "expected a number of tokens, or -1"),
        ),
        (
            {"truncate_prompt_tokens": 9999},
            _no("truncate_prompt_tokens", "expected at most 512, which is"),
        ),
        (
            {"num_speculative_tokens": 99},
            _no("num_speculative_tokens", "this server drafts at most 4 tokens"),
        ),
        ({"num_speculative_tokens": -1}, _no("num_speculative_tokens", "must be at least 0")),
        ({"stream": 1}, _no("stream", BOOLEAN)),
        ({"stream_options": {"include_usage": True}}, _no("stream_options", "it needs stream to be true")),
        ({"response_format": "json"}, _no("response_format", "expected an object")),
        (
            {"response_format": {"type": "xml"}},
            _no("response_format.type", "expected text, json_object or"),
        ),
        (
            {"response_format": {"type": "json_schema"}},
            _no("response_format.json_schema", "expected an object, got"),
        ),
        ({"response_format": _SCHEMA, "guided_regex": "a"}, _no("guided_regex", "the body has response_format, too")),
        ({"structured_outputs": {"x": 1}}, _no("structured_outputs.x", "it is not supported; supported are json,")),
        ({"guided_choice": "a"}, _no("guided_choice", "expected a list")),
        ({"stop_token_ids": [99999]}, _no("stop_token_ids", OUTSIDE)),
        ({"logit_bias": {"99999": 1}}, _no("logit_bias", OUTSIDE)),
        # What a row of a batch has no place for.
        ({"return_token_ids": True}, None, _no("return_token_ids", "the results of a batch have no place for it")),
        ({"prompt_logprobs": 0}, None, _no("prompt_logprobs", "the results of a batch have no place for it")),
        ({"prompt_logprobs": True}, _no("prompt_logprobs", INTEGER)),
    ),
    *_cases(
        CHAT,
        *_answered({"max_completion_tokens": 4}, {"max_tokens": ..., "max_completion_tokens": 3}),
        *_answered({"max_tokens": 3, "max_completion_tokens": 2.0}, {"logprobs": True}, {"logprobs": False}),
        *_answered({"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 0}, {"chat_template_kwargs": {}}),
        *_answered({"messages": [USER, {"role": "assistant", "content": "He"}]}, {"add_generation_prompt": True}),
        *_answered({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b", "name": "n"}]}),
        *_answered({"messages": [{"role": "developer", "content": "a"}, USER]}),
        *_answered({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        *_answered({"response_format": _SCHEMA, "max_tokens": 9}),
        ({"messages": [USER, {"role": "ipython", "content": "x"}]}, _no("messages", "")),  # by this model's template
        ({"prompt": "x"}, _no("prompt", UNKNOWN)),
        ({"best_of": 1}, _no("best_of", UNKNOWN)),
        ({"echo": True}, _no("echo", UNKNOWN)),
        ({"messages": ...}, _no("messages", "is required")),
        ({"messages": None}, _no("messages", "expected a list of at least one message")),
        ({"messages": []}, _no("messages", "expected a list of at least one message")),
        ({"messages": ["a"]}, _no("messages[0]", "expected an object with role and content")),
        ({"messages": [{"role": "user"}]}, _no("messages[0].content", "expected a string, or a list of text parts")),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            _no("messages[0].content[0].type", "'i"),
        ),
        ({"max_tokens": 0}, _no("max_tokens", "must be at least 1")),
        ({"max_completion_tokens": 0}, _no("max_completion_tokens", "must be at least 1")),
        ({"logprobs": 5}, _no("logprobs", BOOLEAN)),
        ({"logprobs": 0}, _no("logprobs", BOOLEAN)),
        ({"top_logprobs": 5}, _no("top_logprobs", "it needs logprobs to be true")),
        ({"logprobs": True, "top_logprobs": 21}, _no("top_logprobs", "must be at most 20")),
        ({"chat_template_kwargs": '{"tape": 0}'}, _no("chat_template_kwargs", "expected an object")),
        ({"tools": 3}, _no("tools", "expected a list of functions")),
        ({"tools": "[]"}, _no("tools", "expected a list of functions")),
        (
            {"tools": [{"type": "web_search"}]},
            _no("tools[0].type", 'expected "function"; other tools'),
        ),
        ({"tool_choice": "required"}, _no("tool_choice", "it needs tools, and there are none")),
        ({"tools": [_F], "tool_choice": "any"}, _no("tool_choice", "expected none, auto, required, or")),
        ({"tools": [_F]}, _no("tools", "the chat template of this model has no place for tools")),
        ({"parallel_tool_calls": "no"}, _no("parallel_tool_calls", BOOLEAN)),
        ({"parallel_tool_calls": 1}, _no("parallel_tool_calls", BOOLEAN)),
        ({"reasoning_effort": 5}, _no("reasoning_effort", STRING)),
        ({"reasoning_effort": "high"}, _no("reasoning_effort", "the chat template of this model has no such variable")),
        ({"continue_final_message": True}, _no("continue_final_message", "the last message is not the assistant's")),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "content": "x"}]},
            _no("messages[1].tool_calls", "the chat template of this model has no place for it"),
        ),
        ({"stream": True}, None, _no("stream", "the answers of a batch are whole")),
    ),
    *_cases(
        COMPLETIONS,
        *_answered({"prompt": ["Once"]}, {"prompt": [20, 21]}, {"prompt": [[20, 21]]}, {"max_tokens": ...}),
        *_answered({"logprobs": 0}, {"logprobs": 5}, {"logprobs": 2.0}, {"best_of": 1}, {"echo": False}),
        *_answered({"best_of": 4, "n": 2, "temperature": 1, "seed": 5, "max_tokens": 12}, {"best_of": 2.0, "seed": 5}),
        *_answered({"best_of": 3, "temperature": 1, "seed": 5, "max_tokens": 12, "logprobs": 2}),
        *_answered({"truncate_prompt_tokens": 2, "prompt": [20, 21, 22, 23]}),
        ({"messages": [USER]}, _no("messages", UNKNOWN)),
        ({"max_completion_tokens": 3}, _no("max_completion_tokens", UNKNOWN)),
        ({"top_logprobs": 2}, _no("top_logprobs", UNKNOWN)),
        ({"chat_template_kwargs": {}}, _no("chat_template_kwargs", UNKNOWN)),
        ({"reasoning_effort": "low"}, _no("reasoning_effort", UNSUPPORTED)),
        ({"tools": [_F]}, _no("tools", UNSUPPORTED)),
        ({"prompt": ...}, _no("prompt", "is required")),
        ({"prompt": None}, _no("prompt", "expected a string, a list of strings, a list of token ids or a list")),
        ({"prompt": 7}, _no("prompt", "expected a string, a list of strings, a list of token ids or a list")),
        ({"prompt": [5, 99999]}, _no("prompt", OUTSIDE)),
        ({"prompt": []}, _no("prompt", "the list is empty")),
        ({"prompt": [[]]}, _no("prompt[0]", "the list is empty")),
        ({"prompt": [1, "a"]}, _no("prompt[1]", "a token id is an integer from 0 to 2147483647")),
        ({"prompt": [1.0]}, _no("prompt[0]", "expected a string, a list of strings, a list of token ids or a list")),
        ({"max_tokens": 0}, _no("max_tokens", "0 tokens can be asked for only with echo or prompt_logprobs")),
        ({"logprobs": True}, _no("logprobs", INTEGER)),
        ({"logprobs": 21}, _no("logprobs", "must be at most 20")),
        ({"best_of": 1, "n": 2}, _no("best_of", "it must not be less than n, which is 2")),
        ({"best_of": 0}, _no("best_of", "must be at least 1")),
        ({"echo": 1}, _no("echo", BOOLEAN)),
        ({"echo": True}, None, _no("echo", "a row has its prompt beside it")),
        ({"prompt": ["a", "b"]}, None, _no("prompt", "a row of a batch has one prompt; give each prompt its own line")),
        ({"prompt": [[1], [2]]}, None, _no("prompt", "a row of a batch has one prompt; give each prompt its own line")),
    ),
]
