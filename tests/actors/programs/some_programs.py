"""Programs for the tests: one that is sound, one for each thing that a program may do wrong, and what is no program."""

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


async def in_two_tasks(generate: Any, row: dict[str, Any]) -> None:
    await asyncio.gather(generate("a"), generate("b"))


async def leaves_one_behind(generate: Any, row: dict[str, Any]) -> str:
    left = asyncio.ensure_future(generate.branch()(row["prompt"], {"max_tokens": 60, "ignore_eos": True}))
    await generate(row["prompt"], {"max_tokens": 1})
    return str(left.done())


async def cancels_one(generate: Any, row: dict[str, Any]) -> str:
    other = asyncio.ensure_future(generate.branch()(row["prompt"], {"max_tokens": 60, "ignore_eos": True}))
    await generate(row["prompt"], {"max_tokens": 1})
    other.cancel()
    await asyncio.wait([other])
    return "cut"


async def changes_its_row(generate: Any, row: dict[str, Any]) -> int:
    row["notes"].append("seen")
    await generate(row["prompt"], {"max_tokens": 1})
    return len(row["notes"])


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


async def raises(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise KeyError("nothing there")


async def tool_raises(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(int, x="a")


async def says_nothing(generate: Any, row: dict[str, Any]) -> str:
    return "no generation"


async def never_ends(generate: Any, row: dict[str, Any]) -> None:
    while True:
        await generate(row["prompt"], {"max_tokens": 1})


async def waits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await asyncio.Event().wait()


async def gives_up_early(generate: Any, row: dict[str, Any]) -> None:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()


async def returns_a_set(generate: Any, row: dict[str, Any]) -> set[int]:
    await generate(row["prompt"])
    return {1}


async def tool_returns_bytes(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(bytes)


async def asks_for_many(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], {"n": 2})


async def asks_for_heat(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], {"temperature": -1})


async def asks_for_unknown(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], {"warmth": 1})


async def asks_with_a_list(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], [1])


async def empty_messages(generate: Any, row: dict[str, Any]) -> None:
    await generate([])


async def number_as_prompt(generate: Any, row: dict[str, Any]) -> None:
    await generate(5)


async def tools_for_a_text(generate: Any, row: dict[str, Any]) -> None:
    await generate("a", tools=[{"type": "function"}])


async def too_long(generate: Any, row: dict[str, Any]) -> None:
    await generate("hello " * 500)


def not_async(generate: Any, row: dict[str, Any]) -> None:
    """No program."""


async def one_argument(generate: Any) -> None:
    """No program."""
