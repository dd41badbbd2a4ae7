"""Asks an endpoint as litellm does, and prints what came back as JSON. Runs in the clients' own environment.

python ask_litellm.py URL KEY MODEL
"""

import asyncio
import json
import sys

import litellm

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
    }
    print("found " + json.dumps(found))  # noqa: T201


main()
