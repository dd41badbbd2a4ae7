"""Llama 3's format: the answer is an object {"name": ..., "parameters": {...}}, or several.

Between several is "; " or white space. An object may have a type "function", too.
"""

from __future__ import annotations

import re
from collections.abc import Set

from pipeline.text.answer_parts import ToolCall
from pipeline.text.tools.asked import Tool
from pipeline.text.tools.family import A_NAME, BROKEN, Family, Forced, Found, Literal, after_space, call_in, value_at
from pipeline.text.tools.json_ends import JsonEnds

_TAG = "<|python_tag|>"
_SPACE_OR_STRING = re.compile(r'\s+|("(?:[^"\\]|\\.)*(?:"|\\?\Z))', re.DOTALL)


class Llama3(Family):
    """A call is the whole answer, or what follows <|python_tag|>; one at most is forced, as its templates take one."""

    name = "llama3"
    marker = _TAG
    begins_bare = True
    special = (_TAG,)
    forced = Forced(re.compile(rf'\s*\{{\s*"name"\s*:\s*{A_NAME}\s*,\s*"parameters"\s*:\s*(?=\S)'), tail="}")

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
            elif not text.startswith("{", behind) and behind < len(text):
                return Found(tuple(calls), end)
        return Found(tuple(calls), end) if is_over else None

    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        head = literal(f'{{"name": "{tool.name}", "parameters": ')
        return f"{head} {arguments} {literal('}')}"

    def call_beside(self, tool: Tool, arguments: str, literal: Literal, space: str) -> str:
        """Return a call in the tokens of JSON, which a form may have in common with it."""
        tokens = ["{", '"name"', ":", f'"{tool.name}"', ",", '"parameters"', ":"]
        pieces = [*map(literal, tokens), arguments, literal("}")]
        return f" {space} ".join(pieces)

    def begins_call(self, text: str, names: Set[str]) -> bool | None:
        """Return whether the text begins as a call of one of these functions does, up to its parameters."""
        tight = _SPACE_OR_STRING.sub(lambda found: found[1] or "", text)
        heads = self.beginnings(names, is_json=True)
        if any(tight.startswith(head) for head in heads):
            return True
        return None if any(head.startswith(tight) for head in heads) else False

    def beginnings(self, names: Set[str], is_json: bool) -> list[str]:
        """Return the begins of calls, without white space; of a text that is no JSON already the first bracket."""
        return [f'{{"name":"{name}","parameters":' for name in sorted(names)] if is_json else ["{"]
