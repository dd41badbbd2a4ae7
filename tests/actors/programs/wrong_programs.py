"""Programs that ask, return or end wrongly, one for each thing that a program may do wrong."""

import asyncio
from typing import Any

# The stage of the error row, and words of its message.
WRONG = {
    "raises": ("program", "the program failed: 'nothing there' (line "),
    "raises_what_has_no_words": ("program", "the program failed: _Wordless (line "),
    "raises_what_exits_when_it_is_read": ("program", "the program failed: _ExitsWhenRead (line "),
    "raises_a_group_that_has_no_words": (
        "program",
        "the program failed: _WordlessGroup, the first: 'nothing there' (l",
    ),
    "raises_a_deep_group": ("program", "the program failed: deep (1 sub-exception), the first: 'nothing there' (line "),
    "exits_with_what_has_no_words": ("program", "the program failed: SystemExit (line "),
    "tool_raises_what_has_no_words": ("program", "the program failed: the tool raised _WordlessBase (line "),
    "raises_in_a_group": ("program", "(1 sub-exception), the first: 'nothing there' (line "),
    "tool_raises": ("program", "the program failed: 'x' is an invalid keyword argument for int() (line "),
    "says_nothing": ("program", "the program ended without a single generation"),
    "never_ends": ("program", "the program asked for more than 5 generations, program.max_turns"),
    "waits": ("program", "the program took more than program.timeout_s, "),
    "gives_up_early": ("program", "the program failed: TimeoutError (line "),
    "returns_a_set": ("program", "the value that the program returned must be what JSON can hold: "),
    "returns_nan": ("program", "the value that the program returned must be what JSON can hold: "),
    "returns_itself": ("program", "the value that the program returned must be what JSON can hold: "),
    "tool_returns_bytes": ("program", "the result of the tool 'bytes' must be what JSON can hold: "),
    "asks_for_many": ("params", "generate: n is one for all turns"),
    "asks_for_heat": ("params", "sampling.temperature must"),
    "asks_for_unknown": ("params", "unknown sampling parameters ['warmth']"),
    "asks_with_a_list": ("params", "generate: sampling: expected an object, got list"),
    "asks_for_a_bad_form": ("params", "sampling.structured.regex cannot be compiled: "),
    "asks_for_a_bad_tool": ("template", "tools[0].function.name: expected a name of 1 to 64"),
    "empty_messages": ("template", "messages: expected a list of at least one message"),
    "number_as_prompt": ("template", "messages: expected a list of at least one message"),
    "tools_for_a_text": ("params", "generate: tools are for messages"),
    "too_long": ("generate", "the prompt has"),
    "in_two_tasks": ("program", "generate is used in two tasks; give each task a conversation of its own"),
    "leaves_one_behind": ("program", "the program ended while a generation went on"),
    "cancels_one": ("program", "the program cancelled a generation"),
}


async def raises(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise KeyError("nothing there")


async def raises_what_has_no_words(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise _Wordless


class _Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("a word that is missing")


async def raises_what_exits_when_it_is_read(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise _ExitsWhenRead


class _ExitsWhenRead(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


async def raises_a_group_that_has_no_words(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise _WordlessGroup("some", [KeyError("nothing there")])


class _WordlessGroup(ExceptionGroup[Exception]):
    def __str__(self) -> str:
        raise KeyError("a word that is missing")


async def raises_a_deep_group(generate: Any, row: dict[str, Any]) -> None:
    try:
        await raises(generate, row)
    except KeyError as error:
        deep: Exception = error
    for _ in range(3000):
        deep = ExceptionGroup("deep", [deep])
    raise deep


async def exits_with_what_has_no_words(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    raise SystemExit(_Wordless())


async def tool_raises_what_has_no_words(generate: Any, row: dict[str, Any]) -> None:
    await generate(row["prompt"])
    await generate.call(_raise_what_has_no_words)


def _raise_what_has_no_words() -> None:
    raise _WordlessBase


class _WordlessBase(BaseException):
    def __str__(self) -> str:
        raise KeyError("a word that is missing")


async def raises_in_a_group(generate: Any, row: dict[str, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises(generate.branch(), row))
        group.create_task(asyncio.Event().wait())


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
