"""Format: how the models of one family write calls, as data. How calls are read, forced and told from text follows."""

import json
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, get_args

from pipeline.requests.strict_json import JsonEnd, parsed
from pipeline.text.answer_parts import ToolCall

MISTRALS = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
_CALLS, _ID, _ARGS = MISTRALS
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_SPACE = re.compile(r"\S")
_JSON_TOKEN = re.compile(r'"[^"]*"|\S')
_SPACE_OR_STRING = re.compile(r'\s+|("(?:[^"\\]|\\.)*(?:"|\\?\Z))', re.DOTALL)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
FamilyName = Literal["auto", "none", "hermes", "llama3", "mistral", "mistral_named"]


@dataclass(frozen=True)
class Found:
    """Calls that were read, and where they end in the text. Without a call it was none, and the text is content."""

    calls: tuple[ToolCall, ...] = ()
    end: int = 0


class _CutOff(Exception):
    """The text ends where more of it decides."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """The format of one family. A call is `open`, its name, `middle`, its arguments and `close`.

    An answer that calls is `marker`, `first`, its calls with `comma` between them, and `last`; or, with `between`,
    several of these. A model is forced to write exactly that; what a model writes by itself is read with other white
    space, too.
    """

    marker: str
    open: str
    middle: str
    close: str
    special: tuple[str, ...]  # tokens of the format that some tokenizers count as special
    first: str = ""
    comma: str | None = None
    last: str = ""
    between: str | None = None
    keys: tuple[str, ...] = ("arguments",)  # names that an object may give its arguments
    begins_bare: bool = False  # whether an answer is calls without the marker, and others may begin with one
    is_mistrals: bool = False  # whether arrays, and names before their arguments, are both read, and ids are short

    def before_arguments(self, name: str) -> str:
        """Return the text of a call of this function up to its arguments."""
        return f"{self.open}{name}{self.middle}"

    def json_tokens(self, name: str) -> list[str]:
        """Return the same as tokens of JSON, between which may be white space."""
        return _JSON_TOKEN.findall(self.before_arguments(name))

    @cached_property
    def forced_head(self) -> re.Pattern[str]:
        """What forced calls have before their arguments; the name is its group "name"."""
        if self.begins_bare:
            head = r"\s*".join(map(re.escape, self.json_tokens("NAME"))) + r"\s*(?=\S)"
        else:
            begins = [rf"{re.escape(self.marker)}\s*{re.escape(self.first.lstrip())}"]
            begins += [] if self.comma is None else [re.escape(self.comma)]
            head = f"(?:{'|'.join(begins)}){re.escape(self.before_arguments('NAME').lstrip())}"
        return re.compile(r"\s*" + head.replace("NAME", f"(?P<name>{_NAME.pattern})"))

    def begins_call(self, text: str, names: Set[str]) -> bool | None:
        """Return whether an answer that is calls of these functions, or of another form, is calls; None if more text
        decides."""
        if self.begins_bare:
            text = _SPACE_OR_STRING.sub(lambda found: found[1] or "", text)
        heads = self.beginnings(names, is_json=True)
        if any(text.startswith(head) for head in heads):
            return True
        return None if any(head.startswith(text) for head in heads) else False

    def beginnings(self, names: Set[str], is_json: bool) -> list[str]:
        """Return what a text of another form may not begin with, as it would be taken for a call of these functions.

        Where calls are bare that is a call without white space; for a text that is no JSON already the first bracket.
        """
        if not self.begins_bare:
            return [self.marker]
        return ["".join(self.json_tokens(name)) for name in sorted(names)] if is_json else ["{"]

    def new_id(self, seed: str) -> str:
        """Return the id of a call, the same for the same seed: for Mistral's templates nine letters or digits."""
        if self.is_mistrals:
            return "".join(_LETTERS[byte % 62] for byte in blake2b(seed.encode(), digest_size=9).digest())
        return f"call_{blake2b(seed.encode(), digest_size=12).hexdigest()}"

    def read(self, text: str, ends: dict[int, JsonEnd], is_over: bool) -> Found | None:
        """Return what calls the text begins with, which follows the marker; None if more text decides.

        `ends` are those of this text, by their starts. If `is_over`, no text follows, and the answer is not None.
        """
        found = Found()
        try:
            while (more := self._next(text, found.end, ends, is_over)) is not None:
                found = Found((*found.calls, *more.calls), more.end)
                if not self.begins_bare:
                    break
        except _CutOff:
            return found if is_over else None
        return found

    def _next(self, text: str, position: int, ends: dict[int, JsonEnd], is_over: bool) -> Found | None:
        """Return the call, or the array of calls, at this position, which may stand behind another; None for none."""
        start, name = _first(text, position), None
        if position and text[start] == ";":
            start = _first(text, start + 1)
        if self.is_mistrals and (name := _NAME.match(text, start)) is not None:
            start = _arguments_of(name)
        is_array = self.is_mistrals and name is None and text[start] == "["
        if not is_array and text[start] != "{":
            return None
        inner = _after_space(text, start + 1)
        if inner < len(text) and text[inner] not in ("{" if is_array else '"}'):
            return None
        end = ends.setdefault(start, JsonEnd(start)).of(text)
        if end is None:
            raise _CutOff
        try:
            value = parsed(text[start:end])
        except ValueError:
            return None
        if name is not None:
            return Found((ToolCall(name[0], _as_text(value)),), end)
        calls = [_call_in(each, self.keys) for each in (value if is_array else [value])]
        whole = tuple(call for call in calls if call is not None)
        return self._closed(text, Found(whole, end), is_over) if whole and len(whole) == len(calls) else None

    def _closed(self, text: str, found: Found, is_over: bool) -> Found | None:
        """Return what was found with its closing tag, before which a model may have stopped; None without the tag."""
        tag = self.close[1:].strip()
        if not tag:
            return found
        behind = _after_space(text, found.end)
        if text.startswith(tag, behind):
            return Found(found.calls, behind + len(tag))
        if not _is_begun(text, behind, tag):
            return None
        if not is_over:
            raise _CutOff
        return Found(found.calls, len(text))


def _arguments_of(name: re.Match[str]) -> int:
    """Return where the arguments stand behind a name, or what there is in their place. Raises _CutOff."""
    text, behind = name.string, name.end()
    if text.startswith(_ID, behind):
        call_id = _NAME.match(text, behind + len(_ID))
        behind = behind + len(_ID) if call_id is None else call_id.end()
        if not text.startswith(_ARGS, behind) and not _is_begun(text, behind, _ARGS):
            return name.start()  # an id without arguments behind it
    if _is_begun(text, behind, _ARGS) or _is_begun(text, behind, _ID):
        raise _CutOff
    return _first(text, behind + len(_ARGS) if text.startswith(_ARGS, behind) else behind)


def _call_in(value: Any, keys: Sequence[str]) -> ToolCall | None:
    """Return the call that an object of JSON describes; None if it describes none.

    Some models write a type beside the name, name and arguments in `function` as the API has them, and arguments as
    JSON text of an object.
    """
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        return None
    if isinstance(value.get("function"), dict) and value.keys() <= {"function", "type", "id"}:
        value = value["function"]
    given = [name for name in keys if name in value]
    if not isinstance(value.get("name"), str) or len(given) != 1 or set(value) - {"name", "id", "type", *given}:
        return None
    arguments = value[given[0]]
    if isinstance(arguments, str):
        try:
            arguments = parsed(arguments)
        except ValueError:
            return None
    return ToolCall(value["name"], _as_text(arguments)) if isinstance(arguments, dict) else None


def _as_text(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)  # as chat templates write it


def _after_space(text: str, start: int) -> int:
    """Return the index of the first character from `start` on that is no white space."""
    found = _NO_SPACE.search(text, start)
    return len(text) if found is None else found.start()


def _first(text: str, start: int) -> int:
    """Return the same. Raises _CutOff if there is none."""
    found = _after_space(text, start)
    if found == len(text):
        raise _CutOff
    return found


def _is_begun(text: str, start: int, literal: str) -> bool:
    """Tell whether the text ends, from `start` on, within the literal, so that more text decides."""
    rest = text[start:]
    return len(rest) < len(literal) and literal.startswith(rest)


FAMILIES: dict[str, Format] = {
    # Qwen's models write it, too: each call is an object between two tags, which are on lines of their own.
    "hermes": Format(
        marker="<tool_call>",
        open='\n{"name": "',
        middle='", "arguments": ',
        close="}\n</tool_call>",
        between="\n",
        special=("<tool_call>", "</tool_call>"),
    ),
    # The answer is one object, or several with "; " or white space between them; templates take one, so one is forced.
    "llama3": Format(
        marker="<|python_tag|>",
        open='{"name": "',
        middle='", "parameters": ',
        close="}",
        keys=("parameters", "arguments"),
        begins_bare=True,
        special=("<|python_tag|>",),
    ),
    # An array of objects, in older templates.
    "mistral": Format(
        marker="[TOOL_CALLS]",
        first=" [",
        open='{"name": "',
        middle='", "arguments": ',
        close="}",
        comma=", ",
        last="]",
        special=MISTRALS,
        is_mistrals=True,
    ),
    # [TOOL_CALLS]name[ARGS]{...}, once for each call. Some models write its id: [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}.
    "mistral_named": Format(
        marker="[TOOL_CALLS]",
        open="",
        middle="[ARGS]",
        close="",
        between="",
        special=MISTRALS,
        is_mistrals=True,
    ),
}
# Tags of formats with arguments that are not JSON, which share <tool_call> with Hermes (Qwen3-Coder, GLM).
_NOT_JSON = ("<function=", "<arg_key>")


def family_of(name: str, chat_template: str | None) -> Format | None:
    """Return the family of this name, or the one whose format the template has, for "auto"; None if there is none.

    Raises ValueError for an unknown name.
    """
    if name == "auto":
        return _of_template(chat_template or "")
    if name not in get_args(FamilyName):
        raise ValueError(f"chat.tool_calls must be one of {', '.join(get_args(FamilyName))}, got {name!r}")
    return FAMILIES.get(name)


def _of_template(template: str) -> Format | None:
    if "[TOOL_CALLS]" in template:
        return FAMILIES["mistral_named" if "[ARGS]" in template else "mistral"]
    if "<tool_call>" in template:
        return None if any(tag in template for tag in _NOT_JSON) else FAMILIES["hermes"]
    is_llama = "<|start_header_id|>" in template and '"parameters"' in template
    return FAMILIES["llama3"] if is_llama or "<|python_tag|>" in template else None
