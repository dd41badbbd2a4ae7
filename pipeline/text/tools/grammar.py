"""Grammars of answers that call tools, in llguidance's dialect of Lark.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md: a rule with `lazy` ends with its first match,
`%json` is a JSON Schema, and `<[7]>` is the token with id 7.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.text.answer_parts import ReasoningTags, Thought
from pipeline.text.tools.asked import ToolsAsked
from pipeline.text.tools.format import Format

# JSON as chat templates write it. A model that may choose its white space can lose itself in it.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SPACE = r" ?(\r?\n)?[ \t]{0,40}"  # as in a form without a thought before it
_FLEXIBLE, _TIGHT = {"whitespace_pattern": _SPACE}, {"whitespace_flexible": False}
_ANY = "(?s:.*)"
# What a regular expression in Lark, between slashes, has in place of these. A backslash goes with what follows it.
_IN_LARK = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\\\n": r"\n", "\\\r": r"\r", "\\\t": r"\t"}
_BACKSLASH_AND_ONE = re.compile(r"\\.|[/\n\r\t]", re.DOTALL)


class GrammarWriter:
    """The writer of grammars for one tokenizer, by whose special tokens some formats mark calls and thoughts."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        """Take the ids of the tokens that are special."""
        self._special_ids = special_ids

    def of_tools(self, asked: ToolsAsked, family: Format, tags: ReasoningTags | None, thought: Thought) -> str:
        """Return the grammar of an answer that calls tools: it must if that is forced, otherwise it may."""
        rules = self._calls(asked, family, _LAYOUT)
        make = self._forced if asked.is_forced else self._free
        body, texts = make(family, self._group(family, asked.is_parallel), asked.is_parallel)
        return self._behind_thought(body, [*rules, *texts], tags, thought)

    def of_structured(self, structured: Mapping[str, Any], tags: ReasoningTags | None, thought: Thought) -> str | None:
        """Return the grammar of a thought with text of this form behind it; None where the form is Lark itself."""
        form = _form(structured)
        return None if form is None else self._behind_thought("form", form, tags, thought)

    def of_either(
        self,
        asked: ToolsAsked,
        family: Format,
        structured: Mapping[str, Any],
        tags: ReasoningTags | None,
        thought: Thought,
    ) -> str | None:
        """Return the grammar of an answer that is nothing but calls, or a text of this form; None where that is Lark.

        The library reads both alternatives by one lexer. So calls that begin as JSON does are written in tokens, with
        the white space of the form's JSON.
        """
        form = _form(structured)
        if form is None:
            return None
        is_tight = bool(structured.get("disable_any_whitespace"))
        layout = (_TIGHT if is_tight else _FLEXIBLE) if family.begins_bare else _LAYOUT
        space = ("" if is_tight else "WHITE?") if family.begins_bare else None
        calls, _ = self._forced(family, self._group(family, asked.is_parallel), asked.is_parallel)
        rules = [*self._calls(asked, family, layout, space), _rule("calls", calls), *form]
        return self._behind_thought("calls | form", [*rules, _rule("WHITE", f"/{_SPACE}/")], tags, thought)

    def _calls(
        self, asked: ToolsAsked, family: Format, layout: Mapping[str, Any], space: str | None = None
    ) -> list[str]:
        """Return the rules of one call. With `space`, as Lark, that stands between the tokens of its JSON."""
        rules = [_rule("call", " | ".join(f"call_{i}" for i in range(len(asked.callable))))]
        for index, tool in enumerate(asked.callable):
            schema = tool.schema if asked.is_forced or tool.strict else {"type": "object"}
            texts = [family.before_arguments(tool.name)] if space is None else family.json_tokens(tool.name)
            pieces = [*(self._text(family, text) for text in texts), f"arguments_{index}"]
            call = f" {space or ''} ".join([*pieces, self._text(family, family.close)])
            rules += [_rule(f"call_{index}", call), _rule(f"arguments_{index}", json_rule(schema, layout))]
        return rules

    def _group(self, family: Format, several: bool) -> str:
        """Return what follows one marker."""
        more = f"({self._text(family, family.comma)} call)*" if several and family.comma is not None else ""
        return f"{self._text(family, family.first)} call {more} {self._text(family, family.last)}"

    def _text(self, family: Format, text: str) -> str:
        """Return a text of a format as Lark, in which tokens of the format may be special tokens."""
        pieces = re.split(f"({'|'.join(map(re.escape, family.special))})", text)
        return " ".join(self.literal(piece) for piece in pieces if piece)

    def literal(self, text: str) -> str:
        """Return a text as Lark: a special token, if it is one."""
        if text in self._special_ids:
            return f"<[{self._special_ids[text]}]>"
        return _quoted(text)

    def _forced(self, family: Format, group: str, several: bool) -> tuple[str, list[str]]:
        one = group if family.begins_bare else f"{self.literal(family.marker)} {group}"
        again = f" ({self._text(family, family.between)} {one})*" if several and family.between is not None else ""
        return one + again, []

    def _free(self, family: Format, group: str, several: bool) -> tuple[str, list[str]]:
        """Return a text with calls or without any, and the rules of its text, which has no marker."""
        again = "*" if several and family.between is not None else "?"
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


def json_rule(schema: Mapping[str, Any], layout: Mapping[str, Any] = _LAYOUT) -> str:
    """Return JSON of this schema as Lark; unless a layout is given, with white space as chat templates write it."""
    return f"%json {json.dumps({**schema, 'x-guidance': layout})}"


def _form(structured: Mapping[str, Any]) -> list[str] | None:
    """Return a form as a rule `form`, with what it needs; None where the form is Lark itself."""
    match structured:
        case {"json_schema": str() as text}:
            schema = json.loads(text)
            own = schema.get("x-guidance", _FLEXIBLE)
            return [_rule("form", json_rule(schema, _TIGHT if structured.get("disable_any_whitespace") else own))]
        case {"json_object": True}:
            layout = _TIGHT if structured.get("disable_any_whitespace") else _FLEXIBLE
            return [_rule("form", json_rule({"type": "object"}, layout))]
        case {"regex": str() as regex}:  # as llguidance writes one that stands alone (`grammar_from_regex`)
            in_lark = _BACKSLASH_AND_ONE.sub(lambda found: _IN_LARK.get(found[0], found[0]), regex)
            return [_rule("form", f"/{in_lark}/")]
        case {"choice": list() | tuple() as texts}:
            # A terminal, as where the choice stands alone: alternatives of a rule are symbols, of which there may be
            # 20,000 only.
            return [_rule("form", "CHOICE"), _rule("CHOICE", " | ".join(_quoted(text) for text in texts))]
    return None


def _rule(name: str, is_what: str) -> str:
    return f"{name}: {is_what}"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
