"""Programs for the tests that are sound, and what is no program."""

import asyncio
import json
import threading
from typing import Any

from pipeline.errors import RowError

NUM_CALLS = 0  # of the tool below
PACE = 1  # of the tool `wait`


def ticket(prefix: str) -> str:
    """A tool that never answers twice alike."""
    global NUM_CALLS
    NUM_CALLS += 1
    return f"{prefix}{NUM_CALLS}"


async def echo(said: str) -> dict[str, str]:
    """A tool that is async."""
    await asyncio.sleep(0)
    return {"said": said}


async def one_turn(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])


async def chat_with_tools(generate: Any, row: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": row["prompt"]}]
    first = await generate(messages, {"max_tokens": 5})
    number = await generate.call(ticket, prefix="t")
    said = await generate.call(echo, said=first.text)
    messages += [first.message, {"role": "user", "content": f"{number} {generate.random.randint(0, 9)} {said['said']}"}]
    second = await generate(messages, {"temperature": 0.8})
    return {"number": number, "texts": [first.text, second.text]}


async def side_by_side(generate: Any, row: dict[str, Any]) -> str:
    """Branches of two turns each, which advance at the engine's pace."""

    async def branch(generate: Any, start: str) -> str:
        first = await generate(start + row["prompt"], {"max_tokens": 3 + 2 * len(start)})
        await generate.call(wait, branch=len(start))
        return str((await generate(first.text + start, {"max_tokens": 4})).text)

    starts = ("", "a", "bb", "a")
    return "|".join(await asyncio.gather(*(branch(generate.branch(), start) for start in starts)))


async def wait(branch: int) -> str:
    """A tool that takes its time, another one each time that PACE is changed."""
    for _ in range(PACE * branch % 7):
        await asyncio.sleep(0)
    return "done"


async def changes_its_row(generate: Any, row: dict[str, Any]) -> int:
    row["notes"].append("seen")
    await generate(row["prompt"], {"max_tokens": 1})
    return len(row["notes"])


BEGUN: asyncio.Queue[str] = asyncio.Queue()  # a test has its own
GIVEN_UP: list[str] = []


async def waits_in_a_task(generate: Any, row: dict[str, Any]) -> None:
    """Waits for ever in a task of its own, and tells when it begins and when it is given up."""

    async def wait() -> None:
        BEGUN.put_nowait(row["prompt"])
        try:
            await asyncio.Event().wait()
        finally:
            GIVEN_UP.append(row["prompt"])

    await generate(row["prompt"], {"max_tokens": 1})
    await asyncio.gather(wait())


def hangs(event: str) -> None:
    """A tool that never returns."""
    threading.Event().wait()


async def calls_what_hangs(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], {"max_tokens": 1})
    await generate.call(hangs, event="")


async def goes_on(generate: Any, row: dict[str, Any]) -> None:
    text = row["prompt"]
    for word in (" one", " two", " three"):
        turn = await generate(text, {"max_tokens": 6})
        text += f"{turn.text}{word}"


async def catches(generate: Any, row: dict[str, Any]) -> str:
    try:
        await generate("")
    except RowError:
        turn = await generate(row["prompt"])
    return f"after all: {turn.text}"


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Paris"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def weather(city: str, days: int) -> str:
    """A tool that the model calls."""
    return f"sun over {city} for {days} days"


async def calls_a_tool(generate: Any, row: dict[str, Any]) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": row["prompt"]}]
    asking = await generate(messages, tools=[WEATHER], tool_choice="required")
    (call,) = asking.tool_calls
    forecast = await generate.call(weather, **json.loads(call["arguments"]))
    messages += [asking.message, {"role": "tool", "tool_call_id": call["id"], "content": forecast}]
    answer = await generate(messages, tools=[WEATHER], tool_choice="none")
    return {"call": asking.message["tool_calls"], "forecast": forecast, "answer": answer.text}


def not_async(generate: Any, row: dict[str, Any]) -> None:
    """No program."""


async def one_argument(generate: Any) -> None:
    """No program."""
