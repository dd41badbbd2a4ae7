"""Answers that may call tools or be text of a form: what their grammar allows, and that drafts change nothing of them.

The chat templates are in the manner of each family's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import llguidance
import pytest
from llguidance import LLMatcher

from actors import GeneratorSettings, ModelSettings
from actors.engine.translation import EncodedRow, decode_row, encode_row
from decoding import Engine, EngineOptions, SamplingParams
from decoding.grammar.definition import definition_of
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.vocabulary.grammars import grammars_of
from pipeline.errors import FieldError
from pipeline.text.answer_parts import Thought
from pipeline.text.codec import TextCodec
from pipeline.text.tools.grammar import GrammarWriter
from tests.endpoint.in_process import BUNDLED
from tests.pipeline.made_up import input_row

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["weather", "Rome", "<tool_call>"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS, "strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}MARKS"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinks %}<think>\n{% endif %}{% endif %}"
)
MARKS = {
    "hermes": "<tool_call></tool_call>",
    "llama3": '<|python_tag|>"parameters"',
    "mistral": "[TOOL_CALLS]",
    "mistral_named": "[TOOL_CALLS][ARGS]",
}
ONE = {
    "hermes": '<tool_call>\n{"name": "@NAME", "arguments": @ARGS}\n</tool_call>',
    "llama3": '{"name": "@NAME", "parameters": @ARGS}',
    "mistral": '[TOOL_CALLS] [{"name": "@NAME", "arguments": @ARGS}]',
    "mistral_named": "[TOOL_CALLS]@NAME[ARGS]@ARGS",
}
TWO = {
    "hermes": f"{ONE['hermes']}\n{ONE['hermes']}",
    "mistral": '[TOOL_CALLS] [{"name": "@NAME", "arguments": @ARGS}, {"name": "@NAME", "arguments": @ARGS}]',
    "mistral_named": ONE["mistral_named"] * 2,
}
FAMILIES = list(ONE)


def call(text: str, name: str = "weather", arguments: str = '{"city": "Rome"}') -> str:
    return text.replace("@NAME", name).replace("@ARGS", arguments)


@dataclass(frozen=True)
class Asked:
    """A chat that may call tools, or be text of a form, with one family's template."""

    family: str
    thinks: bool | None = False  # None: a template without thoughts
    structured: Any = None
    fields: Any = None

    @property
    def codec(self) -> TextCodec:
        template = TEMPLATE.replace("MARKS", MARKS[self.family]).replace(
            "{% if thinks %}", "{% if false %}" if self.thinks is None else "{% if thinks %}"
        )
        reasoning = "none" if self.thinks is None else "think"
        kwargs = {} if self.thinks is None else {"thinks": self.thinks}
        return TextCodec.load(
            str(BUNDLED / "target"), chat_template=template, reasoning=reasoning, template_kwargs=kwargs
        )

    def row(self, codec: TextCodec, ordinal: int = 0, content: str = "hello", **sampling: Any) -> EncodedRow:
        form = {"json_schema": FORM} if self.structured is None else self.structured
        params = SamplingParams(structured=form, max_tokens=60, **sampling)
        settings = GeneratorSettings(models=ModelSettings(target="unused"), sampling=params, seed=5)
        asked = {"tools": [WEATHER, CLOCK], **(self.fields or {})}
        row = input_row(prompt=None, messages=[{"role": "user", "content": content}], asked=asked)
        return encode_row(row, ordinal, codec, settings)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return grammars_of(str(BUNDLED / "target"), 3072, frozenset({0, 4}))


def takes(grammars: Grammars, asked: Asked, text: str) -> bool:
    """Tell whether the grammar of the answer allows this text."""
    codec = asked.codec
    (sequence,) = asked.row(codec).sequences
    assert sequence.params.structured is not None
    assert grammars.problem_with(sequence.params.structured) is None
    token_ids = codec.encode(text, is_chat=True) if text else []
    return grammars.is_whole(sequence.params.structured, [*token_ids, 0])


FORMS = ('{"name": "Rome", "age": 3}', '{\n  "name": "weather",\n  "age": 4\n}', '{"name":"<tool_call>","age":1}')


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_calls_or_text_of_the_form_and_nothing_between(grammars: Grammars, family: str) -> None:
    asked = Asked(family, thinks=None)
    good = [call(ONE[family]), call(ONE[family], "clock", "{}"), call(ONE[family], "clock", '{"x": [1, {}]}'), *FORMS]
    good += [call(TWO[family])] if family in TWO else []
    for text in good:
        assert takes(grammars, asked, text), text
    wrong_city, wrong_name = call(ONE[family], arguments='{"city": "Bonn"}'), call(ONE[family], "other")
    bad = [wrong_city, wrong_name, "", "hello", "{}", '{"name": "Bonn", "age": 3}', f"{FORMS[0]} {FORMS[0]}"]
    bad += [f"{FORMS[0]}{call(ONE[family])}", f"{call(ONE[family])}{FORMS[0]}", f"x{call(ONE[family])}"]
    for text in bad:
        assert not takes(grammars, asked, text), text


@pytest.mark.parametrize("family", FAMILIES)
def test_parallel_tool_calls_false_leaves_one_call_or_the_form(grammars: Grammars, family: str) -> None:
    asked = Asked(family, thinks=None, fields={"parallel_tool_calls": False})
    assert takes(grammars, asked, call(ONE[family]))
    assert takes(grammars, asked, FORMS[0])
    if family in TWO:
        assert not takes(grammars, asked, call(TWO[family]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thought_may_come_first_and_must_where_the_template_opens_it(grammars: Grammars, family: str) -> None:
    for answer in (call(ONE[family]), FORMS[0]):
        thought = f"so so {call(ONE[family])}</think>\n\n{answer}"
        assert takes(grammars, Asked(family, thinks=True), thought)
        assert not takes(grammars, Asked(family, thinks=True), answer)
        assert takes(grammars, Asked(family, thinks=False), f"<think>{thought}")
        assert takes(grammars, Asked(family, thinks=False), answer)


@pytest.mark.parametrize("family", FAMILIES)
def test_json_without_white_space_may_stand_beside_calls(grammars: Grammars, family: str) -> None:
    tight = {"json_schema": FORM, "disable_any_whitespace": True}
    asked = Asked(family, thinks=None, structured=tight)
    assert takes(grammars, asked, '{"name":"Rome","age":3}')
    assert not takes(grammars, asked, FORMS[0])
    text = call(ONE[family]) if family != "llama3" else '{"name":"weather","parameters":{"city":"Rome"}}'
    assert takes(grammars, asked, text)
    thinking = replace(asked, thinks=True)
    assert takes(grammars, thinking, 'a</think>{"name":"Rome","age":3}')
    assert not takes(grammars, thinking, 'a</think>{"name": "Rome", "age": 3}')


def test_choices_and_expressions_may_stand_beside_calls(grammars: Grammars) -> None:
    for family in FAMILIES:
        for form, good, bad in (({"choice": ["yes", "no"]}, "yes", "yesno"), ({"regex": "[a-z/]+"}, "a/b", "7")):
            asked = Asked(family, thinks=None, structured=form)
            assert takes(grammars, asked, good)
            assert takes(grammars, asked, call(ONE[family]))
            assert not takes(grammars, asked, bad)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinks", [None, True])
def test_one_of_many_texts_may_stand_beside_calls_as_it_may_alone(
    grammars: Grammars, family: str, thinks: bool | None
) -> None:
    """Alternatives of a rule were too many symbols."""
    texts = [f"a{number}" for number in range(20_000)]
    asked = Asked(family, thinks=thinks, structured={"choice": texts})
    thought = "b</think>" if thinks else ""
    for good in ("a0", "a1", "a19999", call(ONE[family])):
        assert takes(grammars, asked, thought + good)
    for bad in ("a20000", "a01", "b"):
        assert not takes(grammars, asked, thought + bad)


NAMED = {"properties": {"name": {"type": "string"}, "parameters": {"type": "array"}}}


@pytest.mark.parametrize(
    ("family", "structured", "where"),
    [
        ("hermes", {"grammar": 'start: "a"'}, "sampling.structured.grammar: it cannot stand beside tools"),
        ("hermes", {"regex": "<.*"}, "tools: the text of the form .* may begin with <tool_call>"),
        ("hermes", {"choice": ["<tool_call>", "b"]}, "tools: the text of the form .* may begin with <tool_call>"),
        ("mistral", {"regex": r"\[.*"}, r"tools: the text of the form .* may begin with \[TOOL_CALLS\]"),
        ("llama3", {"json_object": True}, 'tools: the text of the form .* may begin with {"name":'),
        ("llama3", {"json_schema": NAMED}, 'tools: the text of the form .* may begin with {"name":'),
        ("llama3", {"regex": "[{a]+"}, "tools: the text of the form .* may begin with {,"),
        ("llama3", {"json_schema": {**FORM, "x-guidance": {}}}, "json_schema.x-guidance: JSON and calls of this model"),
        ("hermes", {"regex": "<thi.*"}, "tools: the text of the form .* may begin with <think>"),
    ],
)
def test_a_form_whose_text_could_be_taken_for_a_call_is_refused(family: str, structured: Any, where: str) -> None:
    asked = Asked(family, structured=structured)
    with pytest.raises(FieldError, match=where):
        asked.row(asked.codec)
    for fields in ({"tool_choice": "none"}, {"tool_choice": "required"}):
        other = replace(asked, fields=fields)
        assert other.row(other.codec).sequences


WRONG = {
    "a type that is none": (
        {"json_schema": {"type": "nope"}},
        "json_schema: it cannot be compiled: Invalid type: nope",
    ),
    "a bracket that stays open": ({"regex": "("}, "regex: it cannot be compiled: .*unclosed group"),
    "a look ahead": ({"regex": "a(?=b)"}, "regex: it cannot be compiled: .*look-around"),
    "a lexer that is too large": ({"regex": "(a{1000}){1000}"}, "regex: it cannot be compiled: "),
}


@pytest.mark.parametrize("thinks", [True, False, None])
@pytest.mark.parametrize("family", ["hermes", "llama3"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_form_is_reported_as_the_form_that_was_given(name: str, family: str, thinks: bool | None) -> None:
    structured, where = WRONG[name]
    asked = Asked(family, thinks=thinks, structured=structured)
    with pytest.raises(FieldError, match=f"^sampling.structured.{where}"):
        asked.row(asked.codec)


def test_a_wrong_form_behind_an_opened_thought_is_reported_as_the_form_that_was_given() -> None:
    asked = Asked("hermes", thinks=True, structured={"json_schema": {"type": "nope"}}, fields={"tool_choice": "none"})
    with pytest.raises(FieldError, match="it cannot be compiled: Invalid type: nope"):
        asked.row(asked.codec)


def test_a_grammar_that_is_too_long_is_reported_with_what_it_holds() -> None:
    large = {"properties": {"a": {"enum": ["a" * 10_000]}}}
    tools = [
        {"type": "function", "function": {"name": f"t{number}", "strict": True, "parameters": large}}
        for number in range(128)
    ]
    held = "are held to a grammar here: it must have at most 1048576 characters, got"
    for fields, where in (({}, "tools: calls and the form"), ({"tool_choice": "required"}, "tool_choice: calls")):
        asked = Asked("hermes", thinks=None, fields={"tools": tools, **fields})
        with pytest.raises(FieldError, match=f"^{where} {held}"):
            asked.row(asked.codec)


SLASHES = ["a/b", r"a\/b", r"a\\/b", r"a\\\/b", "[/]+", r"[^\/]", "a\nb/", "a\\\nb", "\\\\\n/", "\r/\t", "\\\t", r"/\\"]


@pytest.mark.parametrize("regex", SLASHES)
def test_an_expression_is_written_beside_tools_as_it_is_alone(regex: str) -> None:
    structured = {"regex": regex}
    grammar = GrammarWriter({}).of_structured(structured, None, Thought.CLOSED)
    (alone,) = json.loads(definition_of(Structured(**structured)))["grammars"]
    assert grammar is not None
    assert f"form: {alone['lark_grammar'].removeprefix('start: ')}" in grammar.splitlines()


@pytest.mark.parametrize(("regex", "good", "bad"), [(r"a\\/b", "a\\/b", "a/b"), ("a\nb|c/", "a\nb", "a")])
def test_an_expression_beside_tools_allows_what_it_allows_alone(
    grammars: Grammars, regex: str, good: str, bad: str
) -> None:
    for family in FAMILIES:
        asked = Asked(family, thinks=False, structured={"regex": regex})
        assert takes(grammars, asked, good)
        assert not takes(grammars, asked, bad)


class Counted:
    """llguidance's matcher, and how often a grammar was compiled by it."""

    def __init__(self) -> None:
        self.num_compiled = 0

    def __call__(self, *args: Any, **options: Any) -> llguidance.LLMatcher:
        self.num_compiled += 1
        return LLMatcher(*args, **options)

    def __getattr__(self, name: str) -> Any:
        self.num_compiled += name.startswith("validate_grammar")
        return getattr(LLMatcher, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_form_is_compiled_as_often_beside_many_tools_as_beside_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_tools in (1, 128):
        tools = [{"type": "function", "function": {"name": f"t{number}"}} for number in range(num_tools)]
        names = [f"text {number} beside {num_tools} tools for {family}" for number in range(500)]
        form = {"json_schema": {**FORM, "properties": {"name": {"enum": names}, "age": {"type": "integer"}}}}
        asked = Asked(family, structured=form, fields={"tools": tools})
        codec = asked.codec
        counted = Counted()
        monkeypatch.setattr(llguidance, "LLMatcher", counted)
        assert asked.row(codec).sequences
        assert counted.num_compiled == 2, "once for what is wrong with it, and once for what it may begin with"


ENGINES = [("ngram", 4, 1), ("suffix", 8, 4), ("hybrid", 4, 4), ("model", 1, 16), ("model", 8, 4)]


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    """The target alone first, one row at a time."""
    return [
        Engine.load(
            str(BUNDLED / "target"),
            str(BUNDLED / "draft") if drafter in ("model", "hybrid") else None,
            EngineOptions(
                num_slots=num_slots,
                drafter=drafter,  # type: ignore[arg-type]
                num_speculative_tokens=length,
                draft_length="fixed",
                max_model_len=512,
            ),
            device="cpu",
            dtype="float32",
        )
        for drafter, length, num_slots in [("none", 1, 1), *ENGINES]
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_the_same_for_every_drafter_length_and_number_of_slots(engines: list[Engine], family: str) -> None:
    asked = Asked(family, thinks=None, fields={"tools": [WEATHER], "parallel_tool_calls": family == "hermes"})
    codec = asked.codec
    begin = codec.encode(MARKS[family][:1] if family != "llama3" else '"parameters', is_chat=True)[0]
    texts = []
    for engine in engines:
        rows = [
            asked.row(codec, ordinal, content, temperature=temperature, logit_bias={begin: bias})
            for ordinal, (content, temperature, bias) in enumerate(
                (content, temperature, bias)
                for content in ("hello", "Tell me of Rome.")
                for temperature in (0.0, 1.0)
                for bias in (0.0, 30.0)
            )
        ]
        engine.submit(sequence for row in rows for sequence in row.sequences)
        while engine.has_work:
            engine.step()
        texts.append([decode_row(row, codec)[0] for row in rows])
    ids = [[row["token_ids"] for row in found] for found in texts]
    assert ids == [ids[0]] * len(ids)
    kinds = set()
    for row in texts[0]:
        kinds.add((row["finish_reason"], row["tool_calls"] is not None))
        for made in row["tool_calls"] or []:
            assert made["name"] in ("weather", "clock")
            if made["name"] == "weather" and row["finish_reason"] == "stop":
                jsonschema.validate(json.loads(made["arguments"]), ARGUMENTS)
        if row["tool_calls"] is None and row["finish_reason"] == "stop":
            assert row["content"] == row["text"]
            jsonschema.validate(json.loads(row["content"]), FORM)
    assert ("stop", False) in kinds
    assert ("stop", True) in kinds
