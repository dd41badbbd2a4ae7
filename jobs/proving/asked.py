"""What is asked of a row besides its prompt, so that a proof meets each kind of state that a row has.

A case changes a row's own sampling parameters, or the fields of its chat. It needs nothing of the model: a chat gets a
small template with the marks of one family.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, NamedTuple

from jobs.config.prove import AskedName
from jobs.driver.plan import Plan
from pipeline.inputs.rows import InputRow, read_unit
from pipeline.inputs.units import WorkUnit
from pipeline.text.answer_parts import ReasoningName, ReasoningTags, Thought
from pipeline.text.codec import TextCodec
from pipeline.text.tools.format import FamilyName
from pipeline.text.tools.grammar import GrammarWriter

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "kind": {"enum": ["story", "list", "story of a list"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "rest": {"type": ["object", "array"]},
    },
    "required": ["title", "kind", "count"],
    "additionalProperties": False,
}
_ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "days": {"type": "integer", "maximum": 14}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": _ARGUMENTS, "strict": True}},
    {"type": "function", "function": {"name": "weather_at", "parameters": {"type": "object"}}},
]
# A mask that a rejected draft left behind would close another bracket than the one that is open.
_GRAMMAR = r"""start: item (" "? item)*
item: "[" inside "]" | "{" inside "}" | "(" inside ")" | "\"" inside "\""
inside: WORD | item
WORD: /[a-z0-9 ]{1,9}/"""
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinks %}<think>\n{% endif %}{% endif %}"
)


_FORM = {"structured": {"json_schema": SCHEMA}}
_ANY_JSON = {"structured": {"json_object": True}}


@dataclass(frozen=True)
class Asked:
    """What is asked. A row with chat fields is a chat, whose calls have the format of this family."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    chat: Mapping[str, Any] = field(default_factory=dict)
    family: FamilyName = "hermes"

    @property
    def reasoning(self) -> ReasoningName:
        """The tags of its thoughts: where a thought is free to begin, a small model begins one that never ends."""
        return "think" if "chat_template_kwargs" in self.chat else "none"

    def of(self, row: InputRow) -> InputRow:
        """Return the row with this asked of it, too."""
        row = replace(row, overrides={**row.overrides, **self.sampling})
        if not self.chat:
            return row
        messages = row.messages or [{"role": "user", "content": row.prompt}]
        return replace(row, prompt=None, messages=messages, asked={**row.asked, **self.chat})


_FAMILIES: tuple[FamilyName, ...] = ("hermes", "llama3", "mistral", "mistral_named")
_THINK, _STOP = ReasoningTags("<think>", "</think>"), {"stop": [". T", "\n3", "d the", "= 3"]}
_PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
# Few small models end a thought, and come to the form behind it: this one may have 60 characters.
_THOUGHT_FORM = GrammarWriter({}).of_structured({"json_schema": json.dumps(SCHEMA)}, _THINK, Thought.OPEN) or ""
_SHORT_THOUGHT_FORM = _THOUGHT_FORM.replace("(?s:.*)", "(?s:.{0,60})")
CASES: Mapping[str, Asked] = {
    "nothing": Asked(),
    "json_object": Asked(_ANY_JSON),
    "json_schema": Asked(_FORM),
    "json_tight": Asked({"structured": {"json_schema": SCHEMA, "disable_any_whitespace": True}}),
    "regex": Asked({"structured": {"regex": r"(The|A|An) [a-z]{2,10}( [a-z]{1,10}| [0-9]{1,3}){3,20}\."}}),
    "choice": Asked({"structured": {"choice": ["Rome", "Romania", "Oslo", "Oslo in March", "the old town"]}}),
    "grammar": Asked({"structured": {"grammar": _GRAMMAR}}),
    **{f"{name}_forced": Asked({}, {"tools": TOOLS, "tool_choice": "required"}, name) for name in _FAMILIES},
    **{f"{name}_auto": Asked({}, {"tools": TOOLS}, name) for name in _FAMILIES},
    **{f"{name}_or_form": Asked(_FORM, {"tools": TOOLS}, name) for name in _FAMILIES},
    "thought": Asked({"structured": {"grammar": _SHORT_THOUGHT_FORM}}),
    "open_thought": Asked(_FORM, {"chat_template_kwargs": {"thinks": True}}),
    "stop": Asked(_STOP),
    "penalties": Asked(_PENALTIES),
    "min_tokens": Asked({"min_tokens": 12, **_STOP}),
    "logprobs": Asked({"logprobs": 3}),
    "bad_words": Asked({"bad_words": [" the", ".", " and", "\n"]}),
    "all_at_once": Asked({**_ANY_JSON, "top_p": 0.9, "logprobs": 2, "stop": ['e"'], **_PENALTIES}),
}


class PlacedInput(NamedTuple):
    """A row and its place in the whole input, which decides its noise, and what is asked of it beside its own."""

    row: InputRow
    ordinal: int
    asked: str = "nothing"  # a name of CASES


def good_inputs(
    plan: Plan,
    units: Iterable[WorkUnit],
    problem_with: Callable[[PlacedInput], str | None],
    leave_out: Callable[[str], object],
) -> Iterator[PlacedInput]:
    """Yield the rows of these units that an engine can write; `leave_out` gets a line about each other one."""
    for unit in units:
        for row in read_unit(unit, plan.input_options, plan.carried):
            if isinstance(row, InputRow):
                placed = PlacedInput(row, unit.first_ordinal + unit.row_index(row.row_id))
                problem = problem_with(placed)
                if problem is None:
                    yield placed
            else:
                problem = row.message
            if problem is not None:
                leave_out(f"row {unit.row_name(row.row_id, None)} is left out: {problem}")


def asking(inputs: Iterable[PlacedInput], name: AskedName) -> list[PlacedInput]:
    """Return these rows with this asked of them; "mixed" deals out all cases, one to each row in turn."""
    cases = zip(inputs, cycle(CASES) if name == "mixed" else cycle([name]), strict=False)
    return [PlacedInput(CASES[case].of(row), ordinal, case) for (row, ordinal, _), case in cases]


class Codecs:
    """The codec of a run, and the same with a template for the chats of cases."""

    def __init__(self, codec: TextCodec) -> None:
        self._own, self._others = codec, dict[str, TextCodec]()

    def of(self, placed: PlacedInput) -> TextCodec:
        """Return the codec that renders this row."""
        asked = CASES[placed.asked]
        if not asked.chat:
            return self._own
        formats: dict[str, Any] = {"tool_calls": asked.family, "reasoning": asked.reasoning}
        return self._others.setdefault(str(formats), replace(self._own, chat_template=TEMPLATE, **formats))
