"""Llama 3's format: the answer is an object {"name": ..., "parameters": {...}}; of several, with "; " between them."""

from __future__ import annotations

import re

from pipeline.text.answer_parts import ToolCall
from pipeline.text.tools.asked import Tool
from pipeline.text.tools.family import A_NAME, BROKEN, Family, Forced, Found, Literal, after_space, call_in, value_at
from pipeline.text.tools.json_ends import JsonEnds

_TAG = "<|python_tag|>"


class Llama3(Family):
    """A call is the whole answer, or what follows <|python_tag|>; one at most is forced, as its templates take one."""

    name = "llama3"
    marker = _TAG
    begins_bare = True
    special = (_TAG,)
    forced = Forced(re.compile(rf'\s*\{{"name": {A_NAME}, "parameters": '), tail="}")

    def read(self, text: str, ends: JsonEnds, is_over: bool) -> Found | None:
        """Read calls up to the end of the text, or up to what is no call."""
        calls: list[ToolCall] = []
        position = end = 0
        while True:
            start = after_space(text, position)
            if start == len(text):
                break
            if text[start] != "{":
                return Found(tuple(calls), end) if calls else BROKEN
            found = value_at(text, start, ends)
            if found is None:
                return None if not is_over else Found(tuple(calls), end)
            call = call_in(found[0], ["parameters", "arguments"])
            if call is None:
                return Found(tuple(calls), end) if calls else BROKEN
            calls.append(call)
            position = end = found[1]
            behind = after_space(text, end)
            if text.startswith(";", behind):
                position = behind + 1
            elif behind < len(text):
                return Found(tuple(calls), end)
        return Found(tuple(calls), end) if is_over else None

    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        head = literal(f'{{"name": "{tool.name}", "parameters": ')
        return f"{head} {arguments} {literal('}')}"
