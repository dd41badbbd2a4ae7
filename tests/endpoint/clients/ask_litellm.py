"""Asks an endpoint as litellm does, and prints what came back as JSON. Runs in the clients' own environment.

python ask_litellm.py URL KEY MODEL
"""

import asyncio
import json
import sys
from typing import Any

import litellm
from forms import Animal, tell

MESSAGES = [{"role": "user", "content": "Tell me a story about a raven."}]
PROMPT = "Once upon a time"


def main() -> None:
    """Send every kind of request."""
    url, key, model = sys.argv[1:]
    chat = {"model": f"openai/{model}", "messages": MESSAGES, "seed": 5, "max_tokens": 24}
    text = {"model": f"text-completion-openai/{model}", "prompt": PROMPT, "seed": 5, "max_tokens": 24}
    server = {"api_base": f"{url}/v1", "api_key": key, "num_retries": 0}
    answer = litellm.completion(**chat, **server)
    events = list(litellm.completion(**chat, **server, stream=True, stream_options={"include_usage": True}))
    later = asyncio.run(litellm.acompletion(**chat, **server))
    written = litellm.text_completion(**text, **server)
    pieces = list(litellm.text_completion(**text, **server, stream=True))
    try:
        litellm.completion(**{**chat, "seed": "x"}, **server)
        error = None
    except litellm.BadRequestError as refused:
        error = refused.status_code
    tool = {"type": "function", "function": {"name": "animal", "parameters": Animal.model_json_schema()}}
    asked = {**server, "model": chat["model"], "messages": MESSAGES, "seed": 5}
    formed = litellm.completion(**asked, response_format=Animal)
    object_ = litellm.completion(**asked, response_format={"type": "json_object"}, temperature=0)
    calling = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    called = litellm.completion(**asked, **calling)
    pieces_of_call = list(litellm.completion(**asked, **calling, stream=True))
    called_streamed = litellm.stream_chunk_builder(pieces_of_call)
    formed_later = asyncio.run(litellm.acompletion(**asked, response_format=Animal))
    found = {
        "chat": answer.choices[0].message.content,
        "chat_usage": [answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens],
        "finish_reason": answer.choices[0].finish_reason,
        "streamed": "".join(event.choices[0].delta.content or "" for event in events if event.choices),
        "streamed_usage": [
            [event.usage.prompt_tokens, event.usage.completion_tokens, event.usage.total_tokens]
            for event in events
            if getattr(event, "usage", None)
        ],
        "asynchronous": later.choices[0].message.content,
        "text": written.choices[0].text,
        "text_streamed": "".join(piece.choices[0].text or "" for piece in pieces if piece.choices),
        "bad_request": error,
        "form": _content(formed),
        "object": _content(object_),
        "form_async": _content(formed_later),
        "call": _arguments(called),
        "call_streamed": _arguments(called_streamed),
        "response": litellm.responses(**server, model=chat["model"], input="x", max_output_tokens=8).status,
    }
    tell(found)


def _content(answer: Any) -> Any:
    return json.loads(answer.choices[0].message.content)


def _arguments(answer: Any) -> Any:
    (call,) = answer.choices[0].message.tool_calls
    return json.loads(call.function.arguments)


main()
