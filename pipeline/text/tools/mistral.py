"""Mistral's formats: [TOOL_CALLS] and an array of objects, or, in newer templates, [TOOL_CALLS]name[ARGS]{...}.

Some models write the id of a call behind its name: [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from pipeline.text.answer_parts import ToolCall
from pipeline.text.tools.asked import Tool
from pipeline.text.tools.family import (
    A_NAME,
    BROKEN,
    Family,
    Forced,
    Found,
    Literal,
    after_space,
    arguments_text,
    call_in,
    is_begun,
    value_at,
)
from pipeline.text.tools.json_ends import JsonEnds

_CALLS, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Mistral(Family):
    """The array of the older models. Both formats are read."""

    name = "mistral"
    marker = _CALLS
    special = (_CALLS, _ID, _ARGS)
    forced = Forced(re.compile(rf'(?:\s*\[TOOL_CALLS\]\s*\[|, )\{{"name": {A_NAME}, "arguments": '), tail="}")

    def read(self, text: str, ends: JsonEnds, is_over: bool) -> Found | None:
        """Read the calls behind one marker."""
        start = after_space(text)
        if start == len(text):
            return BROKEN if is_over else None
        if text[start] in "[{":
            return _array(text, start, ends, is_over)
        return _named(text, start, ends, is_over)

    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        head = literal(f'{{"name": "{tool.name}", "arguments": ')
        return f"{head} {arguments} {literal('}')}"

    def group(self, call: str, several: bool, literal: Literal) -> str:
        more = f"({literal(', ')} {call})*" if several else ""
        return f"{literal(' [')} {call} {more} {literal(']')}"

    def new_id(self, seed: str) -> str:
        """Return nine letters or digits: templates of this family refuse other ids."""
        digest = blake2b(seed.encode(), digest_size=9).digest()
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


class MistralNamed(Mistral):
    """[TOOL_CALLS]name[ARGS]{...}, once for each call."""

    name = "mistral_named"
    separator = ""
    forced = Forced(re.compile(r"\s*\[TOOL_CALLS\](?P<name>[a-zA-Z0-9_-]{1,64})\[ARGS\]"), tail="")

    def call(self, tool: Tool, arguments: str, literal: Literal) -> str:
        return f"{literal(tool.name)} {literal(_ARGS)} {arguments}"

    def group(self, call: str, several: bool, literal: Literal) -> str:
        return call


def _array(text: str, start: int, ends: JsonEnds, is_over: bool) -> Found | None:
    first = after_space(text, start + 1)
    if text[start] == "[" and first < len(text) and text[first] != "{":
        return BROKEN
    found = value_at(text, start, ends)
    if found is None:
        return BROKEN if is_over else None
    value, end = found
    calls = [call_in(each, ["arguments"]) for each in (value if isinstance(value, list) else [value])]
    whole = tuple(call for call in calls if call is not None)
    return Found(whole, end) if whole and len(whole) == len(calls) else BROKEN


def _named(text: str, start: int, ends: JsonEnds, is_over: bool) -> Found | None:
    name = _NAME.match(text, start)
    if name is None:
        return BROKEN
    behind = name.end()
    if text.startswith(_ID, behind):
        call_id = _NAME.match(text, behind + len(_ID))
        behind = behind + len(_ID) if call_id is None else call_id.end()
        if not text.startswith(_ARGS, behind) and not is_begun(text, behind, _ARGS):
            return BROKEN
    if behind == len(text) or is_begun(text, behind, _ARGS) or is_begun(text, behind, _ID):
        return BROKEN if is_over else None
    begin = after_space(text, behind + len(_ARGS) if text.startswith(_ARGS, behind) else behind)
    if begin == len(text):
        return BROKEN if is_over else None
    if text[begin] != "{":
        return BROKEN
    found = value_at(text, begin, ends)
    if found is None:
        return BROKEN if is_over else None
    if not isinstance(found[0], dict):
        return BROKEN
    return Found((ToolCall(name[0], arguments_text(found[0])),), found[1])
