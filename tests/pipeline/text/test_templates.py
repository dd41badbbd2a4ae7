"""Chats in templates of published styles: each prompt is that of transformers for the same messages, or an error row.

Where a template cannot take the messages as they came, the nearest form that it can take is used, and said so here.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import get_json_schema

from pipeline.errors import FieldError, RowError, TemplateError
from pipeline.text.codec import TextCodec
from pipeline.text.messages import check_messages
from tests.pipeline.made_up import input_row

_HEAD = "{% for m in messages %}<|{{ m.role }}|>"
_TAIL = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
_OBJECT = '{"name": "{{ (c.function or c).name }}", "arguments": {{ (c.function or c).arguments | tojson }}}'
_TEXT_OR_OBJECT = "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
_CALLS = "{% for c in m.tool_calls %}<tool_call>CALL</tool_call>{% endfor %}"
_PARTS = "{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}"
_TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"

TEMPLATES = {
    "strings": f"{_HEAD}{{{{ m['content'] }}}}{_TAIL}",
    "joined": "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}",
    "trimmed": f"{_HEAD}{{{{ m.content | trim }}}}{_TAIL}",
    "parts": f"{_HEAD}{_PARTS}{_TAIL}",
    "both": f"{_HEAD}{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{_PARTS}{{% endif %}}{_TAIL}",
    "strings alone": f"{_HEAD}{{% if m.content is string %}}{{{{ m.content }}}}{{% endif %}}{_TAIL}",
    "hermes": _TOOLS + f"{_HEAD}{{{{ m.content }}}}{_CALLS.replace('CALL', _OBJECT)}{_TAIL}",
    "qwen3": _TOOLS
    + f"{_HEAD}{{{{ m.content }}}}{_CALLS.replace('CALL', '{{ c.function.name }}' + _TEXT_OR_OBJECT)}{_TAIL}",
    "xml": f"{_HEAD}{{{{ m.content }}}}"
    + _CALLS.replace(
        "CALL", "{% set f = c.function %}{{ f.name }}{% for k, v in f.arguments | items %}<{{ k }}>{{ v }}{% endfor %}"
    )
    + _TAIL,
    "texts": f"{_HEAD}{{{{ m.content }}}}"
    + _CALLS.replace("CALL", "{{ c['function']['name'] + '|' + c['function']['arguments'] }}")
    + _TAIL,
    "printed": f"{_HEAD}{{{{ m.content }}}}"
    + _CALLS.replace("CALL", "{{ c.function.name }}{{ c.function.arguments }}")
    + _TAIL,
    "first part": f"{_HEAD}{{{{ m.content if m.content is string else m.content[0].text }}}}{_TAIL}",
    "defined": f"{_HEAD}{{% if m.tool_calls is defined %}}CALLS{{% else %}}{{{{ m.content }}}}{{% endif %}}{_TAIL}",
    "null or text": "{% for m in messages %}<|{{ m.role }}|>{% for c in m.tool_calls %}{{ '' if m.content is none else "
    "m.content + '' }}{{ c.function.name + '|' + c.function.arguments }}{% else %}{{ m.content }}{% endfor %}"
    "{% endfor %}",
    "by id": f"{_HEAD}{{{{ m.content }}}}{_CALLS.replace('CALL', '{{ c.id }}' + _TEXT_OR_OBJECT)}{_TAIL}",
    "null": "{% for m in messages %}{% if m.content is none %}"
    + _CALLS.replace("CALL", _OBJECT)
    + "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}",
    "absent": "{% for m in messages %}{% if 'content' not in m %}"
    + _CALLS.replace("CALL", _OBJECT)
    + "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}",
    "no developer": "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<|{{ m.role }}|>"
    "{{ m.content }}{% endif %}{% endfor %}",
    "strict": "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('who?') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    "empty": f"{_HEAD}{{% if m.tool_calls is defined and m.tool_calls | length != 1 %}}"
    "{{ raise_exception('one call') }}{% endif %}{{ m.content }}" + _TAIL,
    "thinking": f"{_HEAD}{{% if m.reasoning_content %}}<think>{{{{ m.reasoning_content }}}}</think>{{% endif %}}"
    "{{ m.content }}" + _TAIL,
    "dumped": "{% for m in messages %}{{ m | tojson }}{% endfor %}",
}
USER = {"role": "user", "content": "hi"}
ARGUMENTS = {"z": 1.0, "a": [None, True, 12345678901234567890, 1e-7], "ü": {"b": None}}
RESULT = {"role": "tool", "tool_call_id": "call_0.a", "content": "20"}


def _parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def _called(arguments: Any, **message: Any) -> list[dict[str, Any]]:
    call = {"id": "call_0.a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [USER, {"role": "assistant", **message, "tool_calls": [call]}, RESULT]


OBJECT, TEXT = _called(ARGUMENTS, content=""), _called('{"b":1.50, "a":2}', content="")
IN_PARTS = [{"role": "system", "content": _parts("be kind")}, {"role": "user", "content": _parts("One", "Two")}]
JOINED = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "OneTwo"}]
SPLIT = [{"role": "user", "content": _parts("hi")}]
PARSED = _called({"b": 1.5, "a": 2}, content="")
DEVELOPER = [{"role": "developer", "content": "be kind"}, USER]
AS_SYSTEM = [{"role": "system", "content": "be kind"}, USER]
BARE = [USER, {"role": "assistant", "content": "", "tool_calls": [{"name": "weather", "arguments": {"a": 1}}]}, RESULT]
THOUGHT = [USER, {"role": "assistant", "content": "so", "reasoning": "hm", "name": "bot", "extra": {"x": [1]}}, USER]
EMPTY = [USER, {"role": "assistant", "content": "so", "tool_calls": []}, USER]

# The template, the messages, and the messages whose prompt by transformers is right.
SAME: list[tuple[str, list[dict[str, Any]]]] = [
    *((name, [USER]) for name in TEMPLATES if name != "parts"),
    *((name, IN_PARTS) for name in ("parts", "both", "dumped")),
    *((name, OBJECT) for name in ("hermes", "qwen3", "xml", "by id", "dumped")),
    *((name, TEXT) for name in ("qwen3", "texts", "printed", "by id")),
    *((name, [{**DEVELOPER[0]}, USER]) for name in ("strings", "joined", "dumped")),
    ("absent", _called(ARGUMENTS)),
    ("absent", _called(ARGUMENTS, content=None)),
    ("hermes", BARE),
    ("hermes", _called(ARGUMENTS, content=None)),
    ("qwen3", _called("", content="x")),
    ("thinking", THOUGHT),
    ("dumped", THOUGHT),
    ("dumped", EMPTY),
    ("strings", EMPTY),
]
OTHER = [
    *((name, IN_PARTS, JOINED) for name in ("strings", "joined", "trimmed", "strings alone", "first part")),
    ("parts", [USER], SPLIT),
    *((name, TEXT, PARSED) for name in ("hermes", "xml")),
    ("hermes", _called("", content="x"), _called({}, content="x")),
    ("xml", _called(None, content="x"), _called({}, content="x")),
    *((name, _called({"b": 1}, content=""), _called('{"b": 1}', content="")) for name in ("texts", "printed")),
    ("no developer", DEVELOPER, AS_SYSTEM),
    ("strict", DEVELOPER, AS_SYSTEM),
    *((name, EMPTY, [USER, {"role": "assistant", "content": "so"}, USER]) for name in ("empty", "defined")),
]


def _of_transformers(codec: TextCodec, messages: Any, **variables: Any) -> str:
    given = {"chat_template": codec.chat_template, "add_generation_prompt": True, **variables}
    return str(codec.tokenizer.apply_chat_template(messages, tokenize=False, **given))


def _prompt(codec: TextCodec, messages: Any, **asked: Any) -> str:
    before = copy.deepcopy((messages, asked))
    prompt = codec.prompt(input_row(prompt=None, messages=messages, asked=asked))[0]
    assert (messages, asked) == before, "the row's own values stay as they are"
    return prompt


def _with(codec: TextCodec, name: str) -> TextCodec:
    return replace(codec, chat_template=TEMPLATES[name])


@pytest.mark.parametrize(("name", "messages"), SAME, ids=lambda value: value if isinstance(value, str) else "")
def test_a_prompt_is_that_of_transformers_for_the_same_messages(codec: TextCodec, name: str, messages: Any) -> None:
    of_name = _with(codec, name)
    assert _prompt(of_name, messages) == _of_transformers(of_name, messages)


@pytest.mark.parametrize(
    ("name", "messages", "nearest"), OTHER, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_template_cannot_take_is_given_in_the_nearest_form_that_it_can(
    codec: TextCodec, name: str, messages: Any, nearest: Any
) -> None:
    of_name = _with(codec, name)
    assert _prompt(of_name, messages) == _of_transformers(of_name, nearest)


def test_a_call_whose_content_is_null_is_in_the_prompt_of_a_template_that_asks_for_null(codec: TextCodec) -> None:
    called = _called('{"a": 1}', content=None)
    assert _prompt(_with(codec, "null or text"), called) == '<|user|>hi<|assistant|>weather|{"a": 1}<|tool|>20'
    assert _prompt(_with(codec, "null"), called) == (
        '<|user|>hi<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call><|tool|>20'
    )


LOST = {
    "a call beside a content": ("null", _called({"a": 1}, content="so"), "messages[1].tool_calls"),
    "a call that is never read": ("strings", _called({"a": 1}, content="so"), "messages[1].tool_calls"),
    "a call that a template fails over": ("joined", _called({"a": 1}), "messages[1].tool_calls"),
    "a tool's answer": ("no developer", [USER, {**RESULT, "tool_call_id": None}], "messages[1].content"),
    "an unknown role": ("no developer", [{"role": "critic", "content": "no"}, USER], "messages[0].content"),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_a_template_leaves_out_is_named_in_an_error(codec: TextCodec, lost: str) -> None:
    name, messages, where = LOST[lost]
    with pytest.raises(FieldError) as caught:
        _prompt(_with(codec, name), messages)
    assert (caught.value.where, caught.value.stage) == (where, "template")
    with pytest.raises(FieldError) as caught:
        _prompt(replace(_with(codec, name), system_prompt="be kind"), messages)
    assert caught.value.where == where, "the numbers are those of the row"


def test_a_name_that_also_stands_elsewhere_does_not_hide_a_lost_call(codec: TextCodec) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    of_name = replace(codec, chat_template=_TOOLS + TEMPLATES["null"] + "{# <tool_call> #}")
    with pytest.raises(FieldError, match=r"messages\[1\]\.tool_calls"):
        _prompt(of_name, _called({"weather": 1}, content="weather"), tools=tools)


def test_a_templates_own_refusal_stays_its_own(codec: TextCodec) -> None:
    of_name = _with(codec, "empty")
    two = [{"function": {"name": "a"}}, {"function": {"name": "b"}}]
    with pytest.raises(TemplateError, match="one call"):
        _prompt(of_name, [USER, {"role": "assistant", "content": "", "tool_calls": two}, RESULT])


def weather(city: str, days: list[int] | None = None) -> dict[str, float]:
    """Return the weather.

    Args:
        city: The city (choices: ["Rome", "Bonn"])
        days: The days

    Returns:
        What it will be like
    """
    return {}


TOOLS: dict[str, dict[str, Any]] = {
    "of transformers": get_json_schema(weather),
    "in another order": {
        "function": {"parameters": {"type": "object"}, "strict": None, "name": "f"},
        "type": "function",
    },
    "with unknown fields": {"type": "function", "x": [1], "function": {"name": "f", "y": {"b": None, "a": 1.0}}},
    "the function itself": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_in_the_prompt_as_it_came(codec: TextCodec, name: str) -> None:
    of_name, tools = _with(codec, "hermes"), [TOOLS[name]]
    assert json.dumps(TOOLS[name], ensure_ascii=False) in _prompt(of_name, [USER], tools=tools)
    assert _prompt(of_name, [USER], tools=tools) == _of_transformers(of_name, [USER], tools=tools)


BAD = {
    "1e400 as text": (_called('{"a": [1e400]}'), "messages[1].tool_calls[0].function.arguments", "1e400 is no number"),
    "1e400 read": (_called({"a": json.loads("1e400")}), "messages[1].tool_calls[0].function.arguments.a", "inf is no"),
    "bytes": ([{**USER, "content": b"x"}], "messages[0].content", "the type bytes"),
    "a date": (_called({"d": datetime(2026, 1, 2)}), "messages[1].tool_calls[0].function.arguments.d", "datetime"),
    "a set": ([{**USER, "x": {1}}], "messages[0].x", "set"),
    "half a character": ([{**USER, "x": ["\ud83d"]}], "messages[0].x[0]", "half a surrogate pair"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_json_cannot_say_is_refused_by_its_path(codec: TextCodec, name: str) -> None:
    messages, where, said = BAD[name]
    with pytest.raises(FieldError, match=re.escape(said)) as caught:
        check_messages(messages)
    assert caught.value.where == where
    with pytest.raises(FieldError):
        _prompt(_with(codec, "dumped"), messages)


def test_variables_and_tools_that_json_cannot_say_are_refused_by_name(codec: TextCodec) -> None:
    by_column = replace(codec, template_columns={"mood": "state"})
    with pytest.raises(FieldError, match=r"^mood: JSON has no value of the type bytes"):
        by_column.prompt(input_row(prompt=None, messages=[USER], columns={"state": b"glad"}))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": float("inf")}}}]
    with pytest.raises(FieldError, match=r"^tools\[0\]\.function\.parameters\.x: inf is no number"):
        _prompt(_with(codec, "hermes"), [USER], tools=tools)


def test_nothing_of_messages_nested_too_deeply_is_read(codec: TextCodec) -> None:
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(FieldError, match=r"messages\[0\].*: it is nested too deeply"):
        check_messages([{**USER, "x": nested}])


def test_a_last_message_in_parts_is_continued(codec: TextCodec) -> None:
    begun = [USER, {"role": "assistant", "content": _parts("so it")}]
    of_name = _with(codec, "both")
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    assert _prompt(of_name, begun) == _of_transformers(of_name, begun, **continued)
    assert _prompt(_with(codec, "strings"), begun) == "<|user|>hi<|end|><|assistant|>so it"


NAMED = {
    "default": f"D{TEMPLATES['strings']}",
    "tool_use": f"T{TEMPLATES['hermes']}",
    "rag": "R{{ messages[0].content }}",
}
TOOL = [{"type": "function", "function": {"name": "f"}}]


def _listed(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": name, "template": source} for name, source in NAMED.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink()


def _filed(folder: Path, named: str) -> None:
    (folder / named).mkdir()
    for name, source in NAMED.items():
        file = folder / "chat_template.jinja" if name == "default" else folder / named / f"{name}.jinja"
        file.write_text(source)


@pytest.fixture(params=["listed", "additional_chat_templates", "chat_templates"])
def named_path(request: pytest.FixtureRequest, tokenizer_path: Path, tmp_path: Path) -> Path:
    """A tokenizer with three named templates, in each of the forms that they come in."""
    for file in tokenizer_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    _listed(tmp_path) if request.param == "listed" else _filed(tmp_path, request.param)
    return tmp_path


def test_named_templates_are_picked_as_transformers_picks_them(named_path: Path) -> None:
    codec = TextCodec.load(str(named_path))
    assert _prompt(codec, [USER]).startswith("D<|user|>hi")
    for tools in (TOOL, []):
        of_tools = replace(codec, chat_template=NAMED["tool_use"])
        assert _prompt(codec, [USER], tools=tools) == _of_transformers(of_tools, [USER], tools=tools)
    assert _prompt(codec, [USER], tools=None).startswith("D")
    assert codec.templates.text != TextCodec.load(str(named_path), template_name="default").templates.text
    assert "<tool_call>" in codec.templates.marks, "an answer shows the marks of any of them"


def test_a_template_is_the_one_that_is_named(named_path: Path) -> None:
    assert _prompt(TextCodec.load(str(named_path), template_name="rag"), [USER]) == "Rhi"
    default = TextCodec.load(str(named_path), template_name="default")
    with pytest.raises(FieldError, match=r"^tools: the chat template of this model has no place for tools"):
        _prompt(default, [USER], tools=TOOL)
    with pytest.raises(ValueError, match=r"template_name is 'ragg', .* it has default, rag, tool_use$"):
        TextCodec.load(str(named_path), template_name="ragg")
    with pytest.raises(ValueError, match=r"both set"):
        TextCodec.load(str(named_path), "{{ messages }}", template_name="rag")


def test_the_answers_form_is_that_of_the_template_in_use(named_path: Path) -> None:
    codec = TextCodec.load(str(named_path))
    with_tools = codec.row_prompt(input_row(prompt=None, messages=[USER], asked={"tools": TOOL})).form
    assert with_tools.family is not None
    assert (with_tools.family.name, with_tools.names) == ("hermes", {"f"})
    assert codec.row_prompt(input_row(prompt=None, messages=[USER])).form.family is None


def test_templates_without_a_default_fail_the_rows_that_need_it(codec: TextCodec) -> None:
    of_two = replace(codec, chat_template={name: NAMED[name] for name in ("rag", "tool_use")})
    assert _prompt(of_two, [USER], tools=TOOL).startswith("T")
    with pytest.raises(RowError, match=r"templates rag, tool_use and no default; name one in chat\.template_name"):
        _prompt(of_two, [USER])


def test_a_clock_stands_still_and_another_process_with_the_same_template_has_its_own(codec: TextCodec) -> None:
    source = "{% macro now() %}{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}{% endmacro %}{{ now() }}"
    at = replace(codec, chat_template=source, moment=datetime(2026, 1, 31, 12, 30))
    assert _prompt(at, [USER]) == "31 Jan 2026 12:30:00.000000"
    assert at.templates.reads_clock
    assert not codec.templates.reads_clock
    assert str(datetime.now().year) in _of_transformers(at, [USER])
    twice = replace(codec, chat_template="{{ strftime_now('%f') }} {{ strftime_now('%f') }}")
    first, second = _prompt(twice, [USER]).split()
    assert first == second, "a chat has one moment"


@pytest.mark.parametrize("source", ["{{ [1, 2] | random }}", "{{ lipsum() }}", "{% set x = messages | random %}"])
def test_a_template_that_draws_by_chance_is_refused(tokenizer_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match="the chat template draws by chance"):
        TextCodec.load(str(tokenizer_path), chat_template=source)


@pytest.mark.parametrize("source", ["{{ lipsum() }}", "{% for m in messages %}"])
def test_a_tokenizers_own_template_that_cannot_be_used_fails_chats_alone(codec: TextCodec, source: str) -> None:
    bad = replace(codec, chat_template=source)
    assert not bad.templates.reads_clock
    assert bad.prompt(input_row(prompt="the"))[0] == "the"
    with pytest.raises(RowError, match=r"^the chat template (draws by chance|is not valid Jinja)"):
        _prompt(bad, [USER])


def test_a_text_that_is_no_template_is_refused(tokenizer_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'own\.jinja', which is neither the path of a file nor Jinja"):
        TextCodec.load(str(tokenizer_path), chat_template="own.jinja")


def test_a_second_begin_token_is_told_once_and_a_chat_has_the_templates_own(
    codec: TextCodec, caplog: pytest.LogCaptureFixture
) -> None:
    begin = codec.tokenizer.bos_token_id
    for _ in range(2):
        assert codec.encode("<|bos|>the", is_chat=False)[:2] == [begin, begin], "as transformers reads it"
    assert [record.getMessage() for record in caplog.records] == [
        'a prompt begins with two begin tokens token=<|bos|> why="the prompt has its text, and the tokenizer adds one"'
    ]
    own = replace(codec, chat_template="{{ bos_token }}{{ messages[0].content }}")
    ids = own.prompt(input_row(prompt=None, messages=[{"role": "user", "content": "<|bos|>the"}]))[1]
    assert ids.count(begin) == 1
