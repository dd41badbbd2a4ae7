"""ChatTemplate: what a chat template reads and writes, and how the models that it is made for write their answers.

ChatTemplates: those of a tokenizer by name, and which of them writes a chat.
"""

import json
import re
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from pipeline.errors import FieldError, RowError
from pipeline.text.answer_parts import ReasoningTags, Thought, reasoning_tags
from pipeline.text.chat import AnswerForm, Chat
from pipeline.text.templates.messages import NO_PLACE
from pipeline.text.tools.asked import ToolsAsked
from pipeline.text.tools.format import FAMILIES, Format, family_of

_CLOCK = "strftime_now"  # the function by which templates read the time
_MAX_REASON = 300  # characters of its own error message that a user is shown
_CLOCKS = Lock()  # transformers keeps one compiled template for each text, with its clock
# Folders of a tokenizer with templates besides the default. transformers reads the first.
FOLDERS = ("additional_chat_templates", "chat_templates")
_MARKS_AS_TEXT = re.compile(r"<\|[^|<>\s]+\|>|\[/?INST\]")  # of Zephyr, and of Llama 2
_DEFAULT, _WITH_TOOLS = "default", "tool_use"  # names that transformers knows

Sources = str | Mapping[str, str] | None


class ChatTemplate:
    """A chat template, as Jinja text, and the variables that all its chats have (`fixed`).

    `tool_calls` and `reasoning` name formats; "auto" finds those of the template.
    """

    def __init__(self, source: str | None, tool_calls: str, reasoning: str, fixed: Mapping[str, Any]) -> None:
        self._source, self._tool_calls, self._reasoning, self._fixed = source or "", tool_calls, reasoning, fixed

    def check(self) -> None:
        """Raise ValueError if no format has one of the names, or if it writes no prompts."""
        family_of(self._tool_calls, self._source)
        reasoning_tags(self._reasoning, self._source)
        if self.problem is not None:
            raise ValueError(self.problem)

    @cached_property
    def problem(self) -> str | None:
        """The reason why it writes no prompts: it is no Jinja, or draws by chance; None if there is none."""
        from jinja2 import TemplateSyntaxError  # TemplateAssertionError is one too: an unknown filter

        try:
            drawn = sorted({"|random", "lipsum"} & self._called)  # what Jinja has for chance
        except TemplateSyntaxError as error:
            return f"the chat template is not valid Jinja: {error.message} (line {error.lineno})"
        reason = "so that a row would have another prompt each time; give one that does not in chat.chat_template"
        return f"the chat template draws by chance ({drawn[0].strip('|')}), {reason}" if drawn else None

    @cached_property
    def family(self) -> Format | None:
        """The format of calls; None if none is known. Raises ValueError for an unknown name."""
        return family_of(self._tool_calls, self._source)

    @cached_property
    def tags(self) -> ReasoningTags | None:
        """The tags around thoughts; None if there are none. Raises ValueError for an unknown name."""
        return reasoning_tags(self._reasoning, self._source)

    @property
    def marks(self) -> frozenset[str]:
        """The tokens that mark calls and thoughts."""
        tags = () if self.tags is None else (self.tags.open, self.tags.close)
        return frozenset((*(() if self.family is None else self.family.special), *tags))

    def answer_form(self, asked: ToolsAsked | None, prompt: str, begun: str) -> AnswerForm:
        """Return the form of the answer to a prompt, whose end may be `begun`, the begin of the answer itself."""
        tools, tags, thought = () if asked is None else asked.callable, self.tags, Thought.FREE
        if tags is not None:
            thought = tags.thought_in(begun) if begun else tags.thought_of(prompt)
        family = (self.family or FAMILIES["hermes"]) if tools else None  # forced calls need none of the template's own
        names = frozenset(tool.name for tool in tools)
        return AnswerForm(tags, thought, family, names, asked is not None and asked.is_forced)

    @property
    def reads_clock(self) -> bool:
        """Whether its prompts depend on the time."""
        return self.problem is None and _CLOCK in self._called

    def variables_of(self, chat: Chat, taken: Set[str]) -> dict[str, Any]:
        """Return the variables that a chat sets. Raises FieldError for what the template does not read."""
        if not isinstance(chat.options, Mapping):
            raise FieldError("chat_template_kwargs", "expected an object")
        for name in chat.options:
            where = f"chat_template_kwargs.{ascii(name)[1:-1]:.64}"
            if name in taken:
                raise FieldError(where, "the chat template gets this name from elsewhere; leave it out")
            self._check_reads(where, name)
        found = dict(chat.options)
        if chat.effort is not None:
            if "reasoning_effort" in found:
                raise FieldError(chat.effort_field, "chat_template_kwargs has it, too; give one of them")
            self._check_reads(chat.effort_field, "reasoning_effort")
            found["reasoning_effort"] = chat.effort
        if chat.asked is not None and self._shows(chat.asked):
            found["tools"] = list(chat.asked.given)
        return found

    def refuse_calls(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise FieldError for calls, if the template never reads any."""
        for index, message in enumerate(messages):
            if message.get("tool_calls") and "tool_calls" not in self._source:
                raise FieldError(f"messages[{index}].tool_calls", NO_PLACE)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        ending: tuple[bool, bool],
        now: datetime,
    ) -> str:
        """Return what the template writes at the time `now`. Raises whatever the template raises."""
        from transformers.utils.chat_template_utils import render_jinja_template

        continues, begins = ending
        given = {"continue_final_message": continues, "add_generation_prompt": begins, **self._fixed, **variables}

        def rendered() -> str:
            (text,), _ = render_jinja_template([messages], chat_template=self._source, **given)
            return str(text)

        if not self.reads_clock:
            return rendered()
        with _CLOCKS:
            names = self._compiled.globals
            names[_CLOCK] = now.strftime
            try:
                return rendered()
            finally:
                del names[_CLOCK]

    def own_reason(self, error: Exception) -> str | None:
        """Return the message of the template's refusal if it is a literal of the template, which quotes no message."""
        from jinja2 import TemplateError

        reason = str(error)
        is_shown = type(error) is TemplateError and len(reason) <= _MAX_REASON and reason.isprintable()
        is_own = reason.strip() and any(f"{quote}{reason}{quote}" in self._source for quote in "'\"")
        return reason if is_shown and is_own else None

    def _shows(self, asked: ToolsAsked) -> bool:
        """Tell whether the template shows tools. Raises FieldError if an answer could not call what is not shown."""
        if not asked.tools:
            return True
        if "tools" in self._names:
            if self.family is None and asked.mode == "auto":
                reason = "no format of calls is known for this model's chat template; name one in chat.tool_calls, or "
                raise FieldError("tools", f"{reason}force a call by tool_choice", is_unsupported=True)
            return True
        if asked.is_forced:
            return False
        reason = "the chat template of this model has no place for tools; a call can only be forced by tool_choice"
        raise FieldError("tools", reason, is_unsupported=True)

    def _check_reads(self, where: str, name: str) -> None:
        if name not in self._names:
            raise FieldError(where, "the chat template of this model has no such variable", is_unsupported=True)

    @cached_property
    def reads_strings(self) -> bool:
        """Whether it writes a content that is a string, as nearly all do; some read parts alone."""
        text = "a text"
        return text in self._written(text) or text not in self._written([{"type": "text", "text": text}])

    def _written(self, content: Any) -> str:
        try:
            return self.render([{"role": "user", "content": content}], {}, (False, True), datetime.min)
        except Exception:  # noqa: BLE001 - a template is a program: some refuse a chat of one message
            return ""

    @property
    def _compiled(self) -> Any:  # transformers keeps it
        from transformers.utils.chat_template_utils import _compile_jinja_template

        return _compile_jinja_template(self._source)

    @cached_property
    def _tree(self) -> Any:
        return self._compiled.environment.parse(self._source)

    @cached_property
    def _called(self) -> frozenset[str]:
        """The names of variables, functions and filters (`|tojson`)."""
        from jinja2 import nodes

        named = self._tree.find_all((nodes.Filter, nodes.Name))
        return frozenset("|" * isinstance(node, nodes.Filter) + node.name for node in named)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names that the template takes from outside."""
        from jinja2 import meta

        return frozenset(meta.find_undeclared_variables(self._tree))


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

    def marks_of_turns(self, control_tokens: Set[str]) -> tuple[str, ...] | None:
        """Return the marks around the turns of a chat, which no question has; None if no template writes one.

        They are what the templates spell of these tokens, and of marks that a tokenizer reads as text, but not the
        marks of thoughts and calls: a question may be about those.
        """
        try:
            self.pick(has_tools=False)
        except RowError:
            return None
        sources = self._sources.values()
        spelled = {token for token in control_tokens if any(token in source for source in sources)}
        return tuple(sorted(spelled.union(*map(_MARKS_AS_TEXT.findall, sources)) - self.marks))

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
