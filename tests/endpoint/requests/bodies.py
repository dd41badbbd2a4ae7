"""Bodies of requests, each with the one answer of jobs, batches and the endpoint: a text, or a refusal by name."""

from dataclasses import dataclass
from typing import Any

from tests.endpoint.requests.bad_chats import BAD_CHATS
from tests.endpoint.requests.bad_completions import BAD_COMPLETIONS
from tests.endpoint.requests.bad_requests import CHAT, COMPLETE, Bad, shared

USER = {"role": "user", "content": "Hi"}
_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 3, "temperature": 0},
    COMPLETE: {"prompt": "Once", "max_tokens": 3, "temperature": 0},
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}
_NO_PLACE = "the results of a batch have no place for it"
_ONE_PROMPT = ("prompt", "a row of a batch has one prompt; give each prompt its own line")


@dataclass(frozen=True)
class Case:
    """A body of a url. `refused` is the path of the field and the reason; None where it is answered.

    `in_batches` is the same for rows of batches, which cannot have all that the endpoint gives.
    """

    name: str
    url: str
    body: dict[str, Any]
    refused: tuple[str, str] | None = None
    in_batches: tuple[str, str] | None = None


def _answered(urls: list[str], *changes: dict[str, Any], in_batches: tuple[str, str] | None = None) -> list[Case]:
    """Cases that the endpoint answers: a good body of each url, but for these fields. `...` leaves one out."""
    found = []
    for url in urls:
        for fields in changes:
            body = {name: value for name, value in {**_BODIES[url], **fields}.items() if value is not ...}
            shown = ", ".join(f"{name}={value!r:.40}" for name, value in fields.items())
            found.append(Case(f"{url} with {shown}", url, body, None, in_batches))
    return found


def _refused(bad: Bad) -> list[Case]:
    """The case of a bad request, unless its answer is of the endpoint or of its engine alone."""
    is_of_server = bad.status != 400 or bad.param == "n" or bad.code == "context_length_exceeded"
    is_of_grammar = "it cannot be compiled" in bad.message or "held to a grammar" in bad.message
    is_of_form = is_of_grammar or ": it must" in bad.message or ": it is not JSON" in bad.message
    if is_of_server or is_of_form or not bad.param or len(str(bad.body)) > 15_000:
        return []
    param, _, reason = bad.message.partition(": ")
    refused, prompt = (bad.param, reason if param == bad.param else ""), bad.body.get("prompt")
    is_split = isinstance(prompt, list) and len(prompt) > 1 and {type(each) for each in prompt} <= {str, list}
    in_batches = _ONE_PROMPT if is_split and reason != "the list is empty" else refused
    return [Case(bad.name, bad.path, bad.body, refused, in_batches)]


CASES = [
    *_answered(
        [CHAT, COMPLETE],
        # Values that ask for nothing, and numbers in another spelling.
        *({}, {"top_k": -1}, {"top_k": 0}, {"top_k": None}, {"skip_special_tokens": True}, {"stream": False}),
        *({"include_stop_str_in_output": False}, {"return_token_ids": False}, {"store": False}, {"n": 1}),
        *({"seed": 7.0}, {"seed": 2**63}, {"seed": -(2**63)}, {"n": 2.0, "temperature": 1, "seed": 3}),
        *({"max_tokens": 2.0}, {"min_tokens": 1.0}, {"top_k": 5.0}, {"temperature": -0.0}),
        *({"temperature": 2, "seed": 1}, {"stop": None}, {"stop": []}, {"stop": "zz"}, {"stop": ["a", "b", "c", "d"]}),
        *({"documents": []}, {"priority": 0}, {"functions": []}, {"function_call": "none"}, {"suffix": ""}),
        *({"tools": []}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}, {"modalities": ["text"]}),
        *({"service_tier": "auto"}, {"metadata": {"a": "b"}}, {"user": "u"}, {"no_such_field": None}),
        *({"logit_bias": {}}, {"logit_bias": {"5": -100.0}}, {"bad_words": []}, {"stop_token_ids": [7]}),
        *({"response_format": {"type": "text"}}, {"guided_regex": "[ab]"}, {"stream_options": None}),
        *({"structured_outputs": {}}, {"structured_outputs": {"choice": ["yes"], "json_object": False}}),
        *({"truncate_prompt_tokens": 50}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 1}),
        *({"num_speculative_tokens": 0}, {"num_speculative_tokens": 2}, {"ignore_eos": True}),
        *({"skip_special_tokens": False, "max_tokens": 40}, {"stop": "a", "max_tokens": 40}),
        {"include_stop_str_in_output": True, "stop": "a", "max_tokens": 40},
        {"repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "min_p": 0, "top_p": 1},
    ),
    *_answered(
        [CHAT],
        *({"max_completion_tokens": 4}, {"max_tokens": ..., "max_completion_tokens": 3}),
        *({"max_tokens": 3, "max_completion_tokens": 2.0}, {"logprobs": True}, {"logprobs": False}),
        *({"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 0}, {"chat_template_kwargs": {}}),
        *({"messages": [USER, {"role": "assistant", "content": "He"}]}, {"add_generation_prompt": True}),
        {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b", "name": "n"}]},
        {"messages": [{"role": "developer", "content": "a"}, USER]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"response_format": _SCHEMA, "max_tokens": 9},
    ),
    *_answered(
        [COMPLETE],
        *({"prompt": ["Once"]}, {"prompt": [20, 21]}, {"prompt": [[20, 21]]}, {"max_tokens": ...}),
        *({"logprobs": 0}, {"logprobs": 5}, {"logprobs": 2.0}, {"best_of": 1}, {"echo": False}),
        *({"best_of": 4, "n": 2, "temperature": 1, "seed": 5, "max_tokens": 12}, {"best_of": 2.0, "seed": 5}),
        {"best_of": 3, "temperature": 1, "seed": 5, "max_tokens": 12, "logprobs": 2},
        {"truncate_prompt_tokens": 2, "prompt": [20, 21, 22, 23]},
    ),
    # What a row of a batch has no place for.
    *_answered([CHAT, COMPLETE], {"return_token_ids": True}, in_batches=("return_token_ids", _NO_PLACE)),
    *_answered([CHAT, COMPLETE], {"prompt_logprobs": 0}, in_batches=("prompt_logprobs", _NO_PLACE)),
    *_answered([CHAT], {"stream": True}, in_batches=("stream", "the answers of a batch are whole")),
    *_answered([COMPLETE], {"echo": True}, in_batches=("echo", "a row has its prompt beside it")),
    *_answered([COMPLETE], {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, in_batches=_ONE_PROMPT),
    *(case for bad in (*BAD_COMPLETIONS, *BAD_CHATS, *shared(BAD_COMPLETIONS)) for case in _refused(bad)),
]
