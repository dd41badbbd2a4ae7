"""A program that does in each row what the row's column `does` names, of what programs may do wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.actors.programs import some_programs

# What a row does: the stage of its error row, and words of the message. None: the row is written.
WRONG: dict[str, tuple[str, str] | None] = {
    "one_turn": None,
    "catches": None,
    "raises": ("program", "the program failed: 'nothing there' (line "),
    "tool_raises": ("program", "the program failed: 'x' is an invalid keyword argument for int()"),
    "says_nothing": ("program", "the program ended without a single generation"),
    "never_ends": ("program", "the program asked for more than 5 generations, program.max_turns"),
    "waits": ("program", "the program took more than program.timeout_s, "),
    "gives_up_early": ("program", "the program failed: TimeoutError (line "),
    "returns_a_set": ("program", "the program returned what JSON cannot hold: "),
    "returns_nan": ("program", "the program returned what JSON cannot hold: "),
    "returns_itself": ("program", "the program returned what JSON cannot hold: "),
    "tool_returns_bytes": ("program", "the result of the tool 'bytes' must be what JSON can hold: "),
    "asks_for_many": ("params", "generate: n is one for all turns"),
    "asks_for_heat": ("params", "sampling.temperature must"),
    "asks_for_unknown": ("params", "unknown sampling parameters ['warmth']"),
    "asks_with_a_list": ("params", "generate: sampling: expected an object, got list"),
    "asks_for_a_bad_form": ("params", "sampling.structured.regex cannot be compiled: "),
    "asks_for_a_bad_tool": ("template", "tools[0].function.name: expected a name of 1 to 64"),
    "empty_messages": ("template", "messages: the list is empty"),
    "number_as_prompt": ("template", "messages: expected a list, got int"),
    "tools_for_a_text": ("params", "generate: tools are for messages"),
    "too_long": ("generate", "the prompt has"),
    "in_two_tasks": ("program", "generate is used in two tasks; give each task a conversation of its own"),
    "leaves_one_behind": ("program", "the program ended while a generation went on"),
    "cancels_one": ("program", "the program cancelled a generation"),
    "exits": ("program", "the program failed: 3 (line "),
    "interrupts": ("program", "the program failed: KeyboardInterrupt"),
    "cancels_itself": ("program", "the program failed: CancelledError"),
    "tool_exits": ("program", "the program failed: the tool raised SystemExit: 4"),
    "tool_stops": ("program", "the program failed: the tool raised StopIteration: no more"),
    "recurses": ("program", "the program failed: maximum recursion depth exceeded"),
    "changes_its_row": None,
}


async def hostile(generate: Any, row: dict[str, Any]) -> Any:
    """Do what the row names."""
    does = _OWN.get(row["does"]) or getattr(some_programs, row["does"])
    return await does(generate, row)


async def returns_nan(generate: Any, row: dict[str, Any]) -> float:
    await generate(row["prompt"])
    return float("nan")


async def returns_itself(generate: Any, row: dict[str, Any]) -> list[Any]:
    await generate(row["prompt"])
    endless: list[Any] = []
    endless.append(endless)
    return endless


async def asks_for_a_bad_form(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"], {"structured": {"regex": "a(b"}})


async def asks_for_a_bad_tool(generate: Any, row: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "a b"}}]
    await generate([{"role": "user", "content": "a"}], tools=tools, tool_choice="required")


async def exits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise SystemExit(3)


async def interrupts(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise KeyboardInterrupt


async def cancels_itself(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise asyncio.CancelledError


async def tool_exits(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_exit)


def _exit() -> None:
    raise SystemExit(4)


async def tool_stops(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_stop)


def _stop() -> None:
    raise StopIteration("no more")


async def recurses(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await recurses(_nothing, row)


async def _nothing(prompt: str) -> None:
    pass


_OWN = {
    each.__name__: each
    for each in (
        *(returns_nan, returns_itself, asks_for_a_bad_form, asks_for_a_bad_tool),
        *(exits, interrupts, cancels_itself, tool_exits, tool_stops, recurses),
    )
}
