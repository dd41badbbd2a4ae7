"""Asks an endpoint as the openai client does: chats, responses, files and batches; prints what came back as JSON.

python ask_openai.py URL KEY MODEL
"""

import asyncio
import json
import sys
import time
from typing import Any

import openai
from forms import MESSAGES, QUESTION, Animal, shown, tell

ENDED = ("completed", "failed", "expired", "cancelled")
STANDARD = {"n": 2, "seed": 7, "max_completion_tokens": 8, "parallel_tool_calls": True, "metadata": {"team": "a"}}
STANDARD |= {"store": False, "service_tier": "auto", "user": "u", "logprobs": True, "top_logprobs": 2, "stop": ["\n\n"]}


def main() -> None:
    """Send every kind of request."""
    url, key, model = sys.argv[1:]
    server = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0}
    with openai.OpenAI(**server) as client:
        found = {**of_chats(client, model), **of_responses(client, model), **of_batches(client, model)}
    tell({**found, **asyncio.run(of_async_client(openai.AsyncOpenAI(**server), model))})


def of_chats(client: openai.OpenAI, model: str) -> dict[str, Any]:
    """Return what chats become."""
    asked = {"model": model, "messages": MESSAGES}
    parsed = client.chat.completions.parse(**asked, response_format=Animal)
    beta = client.beta.chat.completions.parse(**asked, response_format=Animal, seed=3)
    tool = openai.pydantic_function_tool(Animal)
    called = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.choices[0].message.tool_calls
    options = {"include_usage": True}
    with client.chat.completions.stream(**asked, response_format=Animal, seed=3, stream_options=options) as stream:
        streamed = stream.until_done().get_final_completion()
    raw = client.chat.completions.with_raw_response.create(**asked, **STANDARD)
    return {
        "parse": shown(parsed.choices[0].message.parsed),
        "beta_parse": shown(beta.choices[0].message.parsed),
        "parsed_call": shown(call.function.parsed_arguments),
        "parsed_stream": shown(streamed.choices[0].message.parsed),
        "streamed_usage": streamed.usage.total_tokens - streamed.usage.prompt_tokens,
        "num_choices": len(raw.parse().choices),
        "request_id": raw.headers["x-request-id"],
        "models": [each.id for each in client.models.list()],
    }


def of_responses(client: openai.OpenAI, model: str) -> dict[str, Any]:
    """Return what responses become."""
    asked = {"model": model, "input": QUESTION, "extra_body": {"seed": 5}}
    whole = client.responses.create(**asked, max_output_tokens=24)
    events = list(client.responses.create(**asked, max_output_tokens=24, stream=True))
    parsed = client.responses.parse(**asked, text_format=Animal)
    with client.responses.stream(**asked, text_format=Animal) as stream:
        streamed = stream.until_done().get_final_response()
    function = openai.pydantic_function_tool(Animal)["function"]
    tool = {"type": "function", **function}
    called = client.responses.parse(
        **asked, tools=[tool], tool_choice={"type": "function", "name": "Animal"}, text_format=Animal
    )
    return {
        "response": whole.output_text,
        "response_status": whole.status,
        "response_streamed": "".join(each.delta for each in events if each.type == "response.output_text.delta"),
        "response_events": [events[0].type, events[-1].type],
        "response_parsed": shown(parsed.output_parsed),
        "response_parsed_stream": shown(streamed.output_parsed),
        "response_call": shown(called.output[0].parsed_arguments),
    }


def of_batches(client: openai.OpenAI, model: str) -> dict[str, Any]:
    """Return what becomes of a batch, and of one that is cancelled."""
    schema = {"name": "animal", "schema": Animal.model_json_schema(), "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    good = {"model": model, "messages": MESSAGES, "response_format": form}
    lines = [_line(f"good-{number}", {**good, "seed": number}) for number in range(3)]
    content = "\n".join([*lines, _line("bad", {**good, "temperature": -1})]).encode()
    uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
    file = client.files.wait_for_processing(uploaded.id)
    batch = _ended(client, _created(client, file.id))
    output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    second = client.batches.cancel(_created(client, file.id).id)
    cancelled = _ended(client, second)
    files, batches = ({each.id for each in kind.list()} for kind in (client.files, client.batches))
    return {
        "file": [file.bytes == len(content), file.status, client.files.content(file.id).read() == content],
        "batch": [batch.status, batch.request_counts.completed, batch.request_counts.failed, batch.metadata],
        "output": {line["custom_id"]: _content(line) for line in output},
        "errors": {line["custom_id"]: line["response"]["status_code"] for line in errors},
        "cancelled": [second.status, cancelled.status],
        "is_listed": uploaded.id in files and {batch.id, second.id} <= batches,
        "deleted": client.files.delete(uploaded.id).deleted,
    }


async def of_async_client(client: openai.AsyncOpenAI, model: str) -> dict[str, Any]:
    """Return what the same requests become in an event loop."""
    async with client:
        parsed, streamed = await asyncio.gather(
            client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Animal, seed=3),
            client.responses.create(model=model, input=QUESTION, max_output_tokens=24, stream=True),
        )
        events = [event async for event in streamed]
    return {"async_parse": shown(parsed.choices[0].message.parsed), "async_event": events[-1].type}


def _line(custom_id: str, body: dict[str, Any]) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def _created(client: openai.OpenAI, file_id: str) -> Any:
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"team": "a"}
    )


def _ended(client: openai.OpenAI, batch: Any) -> Any:
    while batch.status not in ENDED:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def _content(line: dict[str, Any]) -> str:
    content: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return content


main()
