"""Grammars of answers that call tools, in llguidance's dialect of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md: a rule with `lazy` ends with its first match,
`%json` is a JSON Schema, and `<[7]>` is the token with id 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.text.reasoning import ReasoningTags, Thought
from pipeline.text.tools.asked import ToolsAsked
from pipeline.text.tools.family import Family

# JSON as chat templates write it. A model that may choose its white space can lose itself in it.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_FLEXIBLE = {"whitespace_pattern": r" ?(\r?\n)?[ \t]{0,40}"}  # as for a form without a thought before it
_ANY = "(?s:.*)"


class GrammarWriter:
    """The writer of grammars for one tokenizer, by whose special tokens some formats mark calls and thoughts."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        """Take the ids of the tokens that are special."""
        self._special_ids = special_ids

    def of_tools(self, asked: ToolsAsked, family: Family, tags: ReasoningTags | None, thought: Thought) -> str:
        """Return the grammar of an answer that calls tools: it must if that is forced, otherwise it may."""
        rules = [_rule("call", " | ".join(f"call_{i}" for i in range(len(asked.callable))))]
        for index, tool in enumerate(asked.callable):
            is_held = asked.is_forced or tool.strict
            rules += [
                _rule(f"call_{index}", family.call(tool, f"arguments_{index}", self.literal)),
                _rule(f"arguments_{index}", json_rule(tool.schema if is_held else {"type": "object"})),
            ]
        group = family.group("call", asked.is_parallel, self.literal)
        make = self._forced if asked.is_forced else self._free
        body, texts = make(family, group, asked.is_parallel)
        return self._behind_thought(body, [*rules, *texts], tags, thought)

    def of_structured(self, structured: Mapping[str, Any], tags: ReasoningTags | None, thought: Thought) -> str | None:
        """Return the grammar of a thought with text of this form behind it; None where the form is Lark itself."""
        match structured:
            case {"json_schema": str() as schema}:
                form = json_rule(json.loads(schema), is_flexible=not structured.get("disable_any_whitespace"))
            case {"json_object": True}:
                is_flexible = not structured.get("disable_any_whitespace")
                form = json_rule({"type": "object"}, is_flexible=is_flexible)
            case {"regex": str() as regex}:
                form = "/" + re.sub(r"(?<!\\)/", r"\/", regex) + "/"
            case {"choice": list() | tuple() as texts}:
                form = " | ".join(_quoted(text) for text in texts)
            case _:
                return None
        return self._behind_thought("form", [_rule("form", form)], tags, thought)

    def literal(self, text: str) -> str:
        """Return a text as Lark: a special token, if it is one."""
        if text in self._special_ids:
            return f"<[{self._special_ids[text]}]>"
        return _quoted(text)

    def _forced(self, family: Family, group: str, several: bool) -> tuple[str, list[str]]:
        if family.begins_bare:
            return group, []
        one = f"{self.literal(family.marker)} {group}"
        if not several or family.separator is None:
            return one, []
        between = self.literal(family.separator) if family.separator else ""
        return f"{one} ({between} {one})*", []

    def _free(self, family: Family, group: str, several: bool) -> tuple[str, list[str]]:
        """Return a text with calls or without any, and the rules of its text, which has no marker."""
        again = "*" if several and family.separator is not None else "?"
        if family.begins_bare:
            return f"{group} | TEXT?", [_rule("TEXT", rf"/\s*[^{{\s]{_ANY}/")]
        if family.marker in self._special_ids:
            marked = f"{self.literal(family.marker)} {group}"
            return f"TEXT? ({marked} TEXT?){again}", [_rule("TEXT", "/(?s:.+)/")]
        marker = _escaped(family.marker)
        up_to = _rule("up_to_call[lazy]", f"/{_ANY}{marker}/")
        without = _rule("TEXT", f"/(?s:.+)/ & ~/{_ANY}{marker}{_ANY}/")
        return f"(up_to_call {group}){again} TEXT?", [up_to, without]

    def _behind_thought(self, body: str, rules: Sequence[str], tags: ReasoningTags | None, thought: Thought) -> str:
        rules = [*rules, _rule("body", body)]
        if tags is None or thought == Thought.CLOSED:
            return "\n".join([_rule("start", "body"), *rules])
        rules = [*rules, *self._thought(tags, thought), _rule("SPACE", r"/[ \n]{1,4}/")]
        start = "thought SPACE? body" if thought == Thought.OPEN else "body | thought SPACE? body"
        return "\n".join([_rule("start", start), *rules])

    def _thought(self, tags: ReasoningTags, thought: Thought) -> list[str]:
        if tags.close in self._special_ids:
            begin = "" if thought == Thought.OPEN else f"{self.literal(tags.open)} "
            return [_rule("thought", f"{begin}THOUGHT? {self.literal(tags.close)}"), _rule("THOUGHT", "/(?s:.+)/")]
        begin = "" if thought == Thought.OPEN else rf"\s*{_escaped(tags.open)}"
        return [_rule("thought[lazy]", f"/{begin}{_ANY}{_escaped(tags.close)}/")]


def json_rule(schema: Mapping[str, Any], *, is_flexible: bool = False) -> str:
    """Return JSON of this schema as Lark; unless `is_flexible`, with white space as chat templates write it."""
    options = schema.get("x-guidance", _FLEXIBLE) if is_flexible else _LAYOUT
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def _rule(name: str, is_what: str) -> str:
    return f"{name}: {is_what}"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
