"""Hermes' format, which Qwen's models write, too: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import re

from pipeline.text.tools.asked import Tool
from pipeline.text.tools.family import (
    A_NAME,
    BROKEN,
    Family,
    Forced,
    Found,
    Literal,
    after_space,
    call_in,
    is_begun,
    value_at,
)
from pipeline.text.tools.json_ends import JsonEnds

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Family):
    """Each call is an object between two tags, which are on lines of their own."""

    name = "hermes"
    marker = _OPEN
    special = (_OPEN, _CLOSE)
    separator = "\n"
    forced = Forced(
        re.compile(rf'\s*{_OPEN}\s*\{{"name": {A_NAME}, "arguments": '),
        tail=f"}}\n{_CLOSE}",
    )

    def read(self, text: str, ends: JsonEnds, is_over: bool) -> Found | None:
        """Read one call. Its closing tag may be missing at the end of the text, where a model has stopped before it."""
        start = after_space(text)
        if start == len(text):
            return BROKEN if is_over else None
        if text[start] != "{":
            return BROKEN
        first = after_space(text, start + 1)
        if first < len(text) and text[first] not in '"}':
            return BROKEN
        found = value_at(text, start, ends)
        if found is None:
            return BROKEN if is_over else None
        value, end = found
        call = call_in(value, ["arguments"])
        if call is None:
            return BROKEN
        behind = after_space(text, end)
        if text.startswith(_CLOSE, behind):
            return Found((call,), behind + len(_CLOSE))
        if not is_begun(text, behind, _CLOSE):
            return BROKEN
        return Found((call,), len(text)) if is_over else None

    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        head, tail = literal(f'\n{{"name": "{tool.name}", "arguments": '), literal("}\n")
        return f"{head} {arguments} {tail} {literal(_CLOSE)}"
