"""Asks an endpoint as LangChain does: structured output by its three methods, and tools; prints what came as JSON.

python ask_langchain.py URL KEY MODEL
"""

import asyncio
import sys
from typing import Any, Literal

from forms import QUESTION, Animal, AnyObject, shown, tell
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

# By json_schema and function_calling a grammar holds the schema; in JSON mode only the prompt has it.
METHODS = {"json_schema": Animal, "function_calling": Animal, "json_mode": AnyObject}


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tell the weather of a city."""
    return f"rain in {city}"


def main() -> None:
    """Ask by every method."""
    url, key, model = sys.argv[1:]
    server = {"base_url": f"{url}/v1", "api_key": key, "model": model, "max_retries": 0}
    found: dict[str, Any] = {}
    for method, form in METHODS.items():
        chat = ChatOpenAI(**server, seed=4).with_structured_output(form, method=method)
        found[method] = shown(chat.invoke(QUESTION))
        found[f"{method} stream"] = shown(list(chat.stream(QUESTION))[-1])
        found[f"{method} batch"] = [shown(each) for each in chat.batch([QUESTION, "And of a dog, as JSON?"])]
    for method in ("json_schema", "function_calling"):
        chat = ChatOpenAI(**server, temperature=0)
        found[f"{method} strict"] = shown(chat.with_structured_output(Animal, method=method, strict=True).invoke("x"))
        schema = {**Animal.model_json_schema(), "additionalProperties": False}
        found[f"{method} of a dict"] = shown(chat.with_structured_output(schema, method=method).invoke("x"))
    responses = ChatOpenAI(**server, use_responses_api=True)
    found["responses"] = shown(responses.with_structured_output(Animal).invoke(QUESTION))
    found["responses call"] = shown(responses.with_structured_output(Animal, method="function_calling").invoke("x"))
    found |= asyncio.run(ask_async(server))
    tell({**found, **of_tools(server), "text": OpenAI(**server, max_tokens=8).invoke("Once upon a time")})


async def ask_async(server: dict[str, Any]) -> dict[str, Any]:
    """Return what the asynchronous client makes of answers, all in one event loop."""
    found = {}
    for method, form in METHODS.items():
        chat = ChatOpenAI(**server, seed=4).with_structured_output(form, method=method)
        found[f"{method} async"] = shown(await chat.ainvoke(QUESTION))
    return found


def of_tools(server: dict[str, Any]) -> dict[str, Any]:
    """Return what becomes of a tool that must be called, whole and streamed."""
    chat = ChatOpenAI(**server, seed=4, stream_usage=True)
    bound = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False)
    whole = bound.invoke(QUESTION)
    chunks = list(bound.stream(QUESTION))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    (call,), (streamed_call,) = whole.tool_calls, streamed.tool_calls
    return {
        "called": [call["name"], call["args"], weather.invoke(call).content],
        "called stream": [streamed_call["name"], streamed_call["args"]],
        "usage": whole.usage_metadata["total_tokens"] - whole.usage_metadata["input_tokens"],
        "streamed usage": streamed.usage_metadata["output_tokens"],
        "reason": whole.response_metadata["finish_reason"],
    }


main()
