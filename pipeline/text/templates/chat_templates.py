"""ChatTemplates: the chat templates of a tokenizer by name, and which of them writes a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import RowError
from pipeline.text.templates.chat_template import ChatTemplate

# Folders of a tokenizer with templates besides the default. transformers reads the first.
FOLDERS = ("additional_chat_templates", "chat_templates")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"  # names that transformers knows

Sources = str | Mapping[str, str] | None


class ChatTemplates:
    """One template, several with names as transformers has them, or none."""

    def __init__(self, sources: Sources, tool_calls: str, reasoning: str, fixed: Mapping[str, Any]) -> None:
        self._sources = dict(sources) if isinstance(sources, Mapping) else {_DEFAULT: sources} if sources else {}
        self._templates = {
            name: ChatTemplate(source, tool_calls, reasoning, fixed) for name, source in self._sources.items()
        }

    def pick(self, has_tools: bool) -> ChatTemplate:
        """Return the template of a chat, as transformers' `get_chat_template` picks it. Raises RowError."""
        if not self._templates:
            raise RowError(
                "template", "the row has messages and the tokenizer has no chat template; set one, or give prompts"
            )
        name = _WITH_TOOLS if has_tools and _WITH_TOOLS in self._templates else _DEFAULT
        if name not in self._templates:
            names = ", ".join(sorted(self._templates))
            reason = f"the tokenizer has the chat templates {names} and no default; name one in chat.template_name"
            raise RowError("template", reason)
        if (problem := self._templates[name].problem) is not None:
            raise RowError("template", problem)
        return self._templates[name]

    @property
    def marks(self) -> frozenset[str]:
        """The tokens that mark calls and thoughts in any of them."""
        return frozenset[str]().union(*(template.marks for template in self._templates.values()))

    @property
    def reads_clock(self) -> bool:
        """Whether prompts depend on the time."""
        return any(template.reads_clock for template in self._templates.values())

    @property
    def text(self) -> str:
        """All of them as one text, for fingerprints: the template itself where it is the only one."""
        if set(self._sources) <= {_DEFAULT}:
            return self._sources.get(_DEFAULT, "")
        return json.dumps(self._sources, sort_keys=True)


def sources_of(tokenizer: Any, folder: Path, given: str | None, name: str | None) -> Sources:
    """Return the given template, the one with a name, or all of a tokenizer from this folder. Raises ValueError."""
    if given is not None and name is not None:
        raise ValueError("chat.chat_template and chat.template_name are both set; drop one of them")
    if given is not None and "{" not in given:
        raise ValueError(
            f"chat.chat_template is {given[:80]!r}, which is neither the path of a file nor Jinja; a template of the "
            "tokenizer is named in chat.template_name"
        )
    if given is not None:
        return given
    own = getattr(tokenizer, "chat_template", None)
    found: dict[str, str] = dict(own) if isinstance(own, Mapping) else {_DEFAULT: own} if own else {}
    for file in sorted(file for each in FOLDERS for file in folder.glob(f"{each}/*.jinja")):
        found.setdefault(file.stem, file.read_text(encoding="utf-8"))
    if name is None:
        return found.get(_DEFAULT) if set(found) <= {_DEFAULT} else found
    if name not in found:
        names = f"it has {', '.join(sorted(found))}" if found else "it has none"
        raise ValueError(f"chat.template_name is {name!r}, and the tokenizer has no such chat template: {names}")
    return found[name]
