"""Chats in templates of published styles: each prompt is that of transformers for the same messages, or an error row.

Where a template cannot take the messages as they came, the nearest form that it can take is used, and said so here.
"""

import copy
import json
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import get_json_schema

from pipeline.errors import FieldError, RowError, TemplateError
from pipeline.text.codec import TextCodec
from pipeline.text.templates.chat_template import ChatTemplate, ChatTemplates
from pipeline.text.templates.messages import check_messages
from pipeline.text.tools.format import FAMILIES
from tests.pipeline.made_up import input_row


def _each(body: str) -> str:
    """A template that writes each message so."""
    end = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    return f"{{% for m in messages %}}<|{{{{ m.role }}}}|>{body}<|end|>{{% endfor %}}{end}"


def _each_call(body: str) -> str:
    return f"{{% for c in m.tool_calls %}}<tool_call>{body}</tool_call>{{% endfor %}}"


_OBJECT = _each_call(
    '{"name": "{{ (c.function or c).name }}", "arguments": {{ (c.function or c).arguments | tojson }}}'
)
_TEXT_OR_OBJECT = "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
_PARTS = "{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}"
_TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
_CONTENT, _NAME = "{{ m.content }}", "{{ c.function.name }}"
_PYTHON = "{% for k, v in c.function.arguments.items() %}'{{ k }}': '{{ v }}'{% endfor %}"
_XML = "{% for k, v in c.function.arguments | items %}<{{ k }}>{{ v }}{% endfor %}"

TEMPLATES = {
    "strings": _each("{{ m['content'] }}"),
    "joined": "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}",
    "trimmed": _each("{{ m.content | trim }}"),
    "upper": _each("{{ m.content | upper }}"),
    "parts": _each(_PARTS),
    "parts behind a begin token": "{{ bos_token + '' }}" + _each(_PARTS),
    "both": _each(f"{{% if m.content is string %}}{_CONTENT}{{% else %}}{_PARTS}{{% endif %}}"),
    "strings alone": _each(f"{{% if m.content is string %}}{_CONTENT}{{% endif %}}"),
    "first part": _each("{{ m.content if m.content is string else m.content[0].text }}"),
    "hermes": _TOOLS + _each(_CONTENT + _OBJECT),
    "qwen3": _TOOLS + _each(_CONTENT + _each_call(_NAME + _TEXT_OR_OBJECT)),
    "xml": _each(_CONTENT + _each_call(_NAME + _XML)),
    "texts": _each(_CONTENT + _each_call("{{ c['function']['name'] + '|' + c['function']['arguments'] }}")),
    "printed": _each(_CONTENT + _each_call(_NAME + "{{ c.function.arguments }}")),
    "a list": _each(_CONTENT + "{% if m.tool_calls %}{{ m.tool_calls }}{% endif %}"),
    "as in Python": _each(_CONTENT + _each_call(_NAME + _PYTHON)),
    "by id": _each(_CONTENT + _each_call("{{ c.id }}" + _TEXT_OR_OBJECT)),
    "defined": _each("{% if m.tool_calls is defined %}CALLS{% else %}{{ m.content }}{% endif %}"),
    "null": _each(f"{{% if m.content is none %}}{_OBJECT}{{% else %}}{_CONTENT}{{% endif %}}"),
    "null or text": _each(
        "{% for c in m.tool_calls %}{{ '' if m.content is none else m.content + '' }}"
        "{{ c.function.name + c.function.arguments }}{% else %}{{ m.content }}{% endfor %}"
    ),
    "absent": _each(f"{{% if 'content' not in m %}}{_OBJECT}{{% else %}}{_CONTENT}{{% endif %}}"),
    "no developer": _each("{{ m.content if m.role in ['system', 'user', 'assistant'] }}"),
    "strict": _each("{% if m.role == 'developer' %}{{ raise_exception('who?') }}{% endif %}{{ m.content }}"),
    "one call": _each(
        "{% if m.tool_calls is defined and m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
        "{{ m.content }}"
    ),
    "thinking": _each("{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"),
    "dumped": _each("{{ m | tojson }}"),
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

# Messages, the templates that take them as they are, and those that take the nearest form of them.
PROMPTS: list[tuple[list[dict[str, Any]], str, list[dict[str, Any]], str]] = [
    ([USER], ",".join(name for name in TEMPLATES if "parts" not in name), SPLIT, "parts,parts behind a begin token"),
    (IN_PARTS, "parts,both,dumped", JOINED, "strings,joined,trimmed,upper,strings alone,first part"),
    (OBJECT, "hermes,qwen3,xml,by id,dumped,a list,as in Python", [], ""),
    (TEXT, "qwen3,texts,printed,by id", PARSED, "hermes,xml"),
    (_called({"b": 1}, content=""), "", _called('{"b": 1}', content=""), "texts,printed"),
    (_called("", content="x"), "qwen3", _called({}, content="x"), "hermes"),
    (_called(None, content="x"), "", _called({}, content="x"), "xml"),
    (_called(ARGUMENTS, content=None), "absent,hermes", [], ""),
    (_called(ARGUMENTS), "absent", [], ""),
    (BARE, "hermes", [], ""),
    (DEVELOPER, "strings,joined,dumped,upper", AS_SYSTEM, "no developer,strict"),
    (THOUGHT, "thinking,dumped", [], ""),
    (EMPTY, "dumped,strings", [USER, {"role": "assistant", "content": "so"}, USER], "one call,defined"),
]
SAME = [(name, messages, messages) for messages, names, _, _ in PROMPTS for name in filter(None, names.split(","))]
NEAREST = [(name, own, nearest) for own, _, nearest, names in PROMPTS for name in filter(None, names.split(","))]


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


@pytest.mark.parametrize(("name", "messages", "right"), SAME + NEAREST)
def test_a_prompt_is_that_of_transformers_for_the_same_messages_or_their_nearest_form(codec, name, messages, right):
    of_name = _with(codec, name)
    assert _prompt(of_name, messages) == _of_transformers(of_name, right)


def test_a_chat_of_strings_is_rendered_once(codec, monkeypatch):
    rendered, render = list[Any](), ChatTemplate.render
    chat = [AS_SYSTEM[0], USER, {"role": "assistant", "content": "so"}, USER]
    assert codec.templates.pick(has_tools=False).reads_strings, "this is found out once"
    monkeypatch.setattr(
        ChatTemplate, "render", lambda *given, **named: rendered.append(given) or render(*given, **named)
    )
    assert _prompt(codec, chat) == _of_transformers(codec, chat)
    assert [given[1] for given in rendered] == [chat]


def test_a_call_whose_content_is_null_is_in_the_prompt_of_a_template_that_asks_for_null(codec):
    called = _called('{"a": 1}', content=None)
    assert '<|assistant|>weather{"a": 1}<|end|>' in _prompt(_with(codec, "null or text"), called)
    shown = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
    for messages in (called, _called({"a": 1})):
        assert shown in _prompt(_with(codec, "null"), messages)


LOST = {
    "a call beside a content": ("null", _called({"a": 1}, content="so"), "messages[1].tool_calls"),
    "a call that is never read": ("strings", _called({"a": 1}, content="so"), "messages[1].tool_calls"),
    "a call that a template fails over": ("joined", _called({"a": 1}), "messages[1].tool_calls"),
    "a tool's answer": ("no developer", [USER, {**RESULT, "tool_call_id": None}], "messages[1].content"),
    "an unknown role": ("no developer", [{"role": "critic", "content": "no"}, USER], "messages[0].content"),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_a_template_leaves_out_is_named_in_an_error(codec, lost):
    name, messages, where = LOST[lost]
    for system_prompt in (None, "be kind"):  # which stands before the row's own messages
        with pytest.raises(FieldError) as caught:
            _prompt(replace(_with(codec, name), system_prompt=system_prompt), messages)
        assert (caught.value.where, caught.value.stage) == (where, "template")


def test_a_system_prompt_that_a_template_leaves_out_is_named_as_the_runs_own(codec):
    template = _each("{% if m.role == 'user' %}" + _PARTS + "{% endif %}")
    with pytest.raises(FieldError, match=r"^chat\.system_prompt: the chat template of this model leaves out"):
        _prompt(replace(codec, chat_template=template, system_prompt="be kind"), [USER])


def test_a_name_that_also_stands_elsewhere_does_not_hide_a_lost_call(codec):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    of_name = replace(codec, chat_template=_TOOLS + TEMPLATES["null"] + "{# <tool_call> #}")
    with pytest.raises(FieldError, match=r"messages\[1\]\.tool_calls"):
        _prompt(of_name, _called({"weather": 1}, content="weather"), tools=tools)


def test_a_templates_own_refusal_stays_its_own(codec):
    two = [{"function": {"name": "a"}}, {"function": {"name": "b"}}]
    with pytest.raises(TemplateError, match="one call"):
        _prompt(_with(codec, "one call"), [USER, {"role": "assistant", "content": "", "tool_calls": two}, RESULT])


def weather(city: str, days: list[int] | None = None) -> dict[str, float]:
    """Return the weather.

    Args:
        city: The city (choices: ["Rome", "Bonn"])
        days: The days

    Returns:
        What it will be like
    """
    return {}


@pytest.mark.parametrize(
    "tool",
    [
        get_json_schema(weather),
        {"function": {"parameters": {"type": "object"}, "strict": None, "name": "f"}, "type": "function"},
        {"type": "function", "x": [1], "function": {"name": "f", "y": {"b": None, "a": 1.0}}},
        {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
    ],
)
def test_a_tool_is_in_the_prompt_as_it_came(codec, tool):
    of_name = _with(codec, "hermes")
    assert json.dumps(tool, ensure_ascii=False) in _prompt(of_name, [USER], tools=[tool])
    assert _prompt(of_name, [USER], tools=[tool]) == _of_transformers(of_name, [USER], tools=[tool])


def test_variables_and_tools_that_json_cannot_say_are_refused_by_name(codec):
    by_column = replace(codec, template_columns={"mood": "state"})
    with pytest.raises(FieldError, match=r"^mood: JSON has no value of the type bytes"):
        by_column.prompt(input_row(prompt=None, messages=[USER], columns={"state": b"glad"}))
    with pytest.raises(ValueError, match=r"^chat\.template_kwargs\.day: JSON has no value of the type datetime"):
        TextCodec.load(codec.tokenizer.name_or_path, template_kwargs={"day": datetime(2026, 1, 2)})
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": float("inf")}}}]
    with pytest.raises(FieldError, match=r"^tools\[0\]\.function\.parameters\.x: inf is no number"):
        _prompt(_with(codec, "hermes"), [USER], tools=tools)


def test_nothing_of_messages_nested_too_deeply_is_read():
    nested: Any = "x"
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(FieldError, match=r"messages\[0\].*: it is nested too deeply"):
        check_messages([{**USER, "x": nested}])


def test_a_last_message_in_parts_is_continued(codec):
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


@pytest.fixture(params=["listed", "additional_chat_templates", "chat_templates"])
def named_path(request: pytest.FixtureRequest, tokenizer_path: Path, tmp_path: Path) -> Path:
    """A tokenizer with three named templates, in each of the forms that they come in."""
    folder = shutil.copytree(tokenizer_path, tmp_path / "tokenizer")
    if request.param == "listed":
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": name, "template": source} for name, source in NAMED.items()]
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "chat_template.jinja").unlink()
        return folder
    (folder / request.param).mkdir()
    for name, source in NAMED.items():
        file = "chat_template.jinja" if name == "default" else f"{request.param}/{name}.jinja"
        (folder / file).write_text(source)
    return folder


def test_named_templates_are_picked_as_transformers_picks_them(named_path):
    codec = TextCodec.load(str(named_path))
    assert _prompt(codec, [USER]).startswith("D<|user|>hi")
    for tools in (TOOL, []):
        of_tools = replace(codec, chat_template=NAMED["tool_use"])
        assert _prompt(codec, [USER], tools=tools) == _of_transformers(of_tools, [USER], tools=tools)
    assert _prompt(codec, [USER], tools=None).startswith("D")
    assert "<tool_call>" in codec.templates.marks, "an answer shows the marks of any of them"
    form = codec.row_prompt(input_row(prompt=None, messages=[USER], asked={"tools": TOOL})).form
    assert (form.family, form.names) == (FAMILIES["hermes"], {"f"})
    assert codec.row_prompt(input_row(prompt=None, messages=[USER])).form.family is None


def test_a_template_is_the_one_that_is_named(named_path):
    assert _prompt(TextCodec.load(str(named_path), template_name="rag"), [USER]) == "Rhi"
    default = TextCodec.load(str(named_path), template_name="default")
    assert default.templates.text == NAMED["default"] != TextCodec.load(str(named_path)).templates.text
    with pytest.raises(FieldError, match=r"^tools: the chat template of this model has no place for tools"):
        _prompt(default, [USER], tools=TOOL)
    with pytest.raises(ValueError, match=r"template_name is 'ragg', .* it has default, rag, tool_use$"):
        TextCodec.load(str(named_path), template_name="ragg")
    with pytest.raises(ValueError, match=r"both set"):
        TextCodec.load(str(named_path), "{{ messages }}", template_name="rag")


def test_templates_without_a_default_fail_the_rows_that_need_it(codec):
    of_two = replace(codec, chat_template={name: NAMED[name] for name in ("rag", "tool_use")})
    assert _prompt(of_two, [USER], tools=TOOL).startswith("T")
    with pytest.raises(RowError, match=r"templates rag, tool_use and no default; name one in chat\.template_name"):
        _prompt(of_two, [USER])


def test_a_clock_stands_still_and_another_process_with_the_same_template_has_its_own(codec):
    source = "{% macro now() %}{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}{% endmacro %}{{ now() }}"
    at = replace(codec, chat_template=source, moment=datetime(2026, 1, 31, 12, 30))
    assert _prompt(at, [USER]) == "31 Jan 2026 12:30:00.000000"
    assert at.templates.reads_clock
    assert not codec.templates.reads_clock
    assert str(datetime.now().year) in _of_transformers(at, [USER])
    twice = replace(codec, chat_template="{{ strftime_now('%f') }} {{ strftime_now('%f') }}")
    first, second = _prompt(twice, [USER]).split()
    assert first == second, "a chat has one moment"


BAD_TEMPLATES = {
    "{{ lipsum() }}": r"draws by chance \(lipsum\)",
    "{% set x = messages | random %}": r"draws by chance \(random\)",
    "{% for m in messages %}": "is not valid Jinja: Unexpected end of template",
    "a\n{{ x | nope }}": r"is not valid Jinja: No filter named 'nope'.*line 2",
}


@pytest.mark.parametrize("source", BAD_TEMPLATES)
def test_a_template_that_draws_by_chance_or_is_no_jinja_is_refused_and_a_tokenizers_own_fails_chats_alone(
    codec, source
):
    refusal = f"^the chat template {BAD_TEMPLATES[source]}"
    with pytest.raises(ValueError, match=refusal):
        TextCodec.load(codec.tokenizer.name_or_path, chat_template=source)
    own = replace(codec, chat_template=source)
    assert not own.templates.reads_clock
    assert own.prompt(input_row(prompt="the"))[0] == "the"
    with pytest.raises(RowError, match=refusal):
        _prompt(own, [USER])


def test_a_text_that_is_no_template_is_refused(codec):
    with pytest.raises(ValueError, match=r"'own\.jinja', which is neither the path of a file nor Jinja"):
        TextCodec.load(codec.tokenizer.name_or_path, chat_template="own.jinja")


def test_a_second_begin_token_is_told_once_and_a_chat_has_the_templates_own(codec, caplog):
    begin = codec.tokenizer.bos_token_id
    for _ in range(2):
        assert codec.encode("<|bos|>the", is_chat=False)[:2] == [begin, begin], "as transformers reads it"
    assert [record.getMessage() for record in caplog.records] == [
        'a prompt begins with two begin tokens token=<|bos|> why="the prompt has its text, and the tokenizer adds one"'
    ]
    own = replace(codec, chat_template="{{ bos_token }}{{ messages[0].content }}")
    ids = own.prompt(input_row(prompt=None, messages=[{"role": "user", "content": "<|bos|>the"}]))[1]
    assert ids.count(begin) == 1


@pytest.mark.parametrize(
    ("source", "tokens", "marks"),
    [
        ("<|im_start|>{{ m }}<|im_end|>", {"<|im_end|>", "<|endoftext|>"}, ("<|im_end|>", "<|im_start|>")),
        ("{{ bos_token }}<start_of_turn>{{ m }}", {"<bos>", "<s>", "<start_of_turn>"}, ("<start_of_turn>",)),
        ("{{ bos_token }}[INST] {{ m }} [/INST]", {"<s>"}, ("[/INST]", "[INST]")),
        ("<|user|>{{ m }}", {"</s>"}, ("<|user|>",)),
        ("<|a|>{{ m }}<think></think><tool_call>", {"<think>", "</think>", "<tool_call>"}, ("<|a|>",)),
        (None, {"<s>"}, None),
        ({"tool_use": "<|user|>{{ m }}"}, {"<s>"}, None),
    ],
    ids=["chatml", "gemma", "llama 2", "zephyr", "thoughts and calls", "none", "no default"],
)
def test_the_marks_of_turns_are_what_no_question_has(source, tokens, marks):
    assert ChatTemplates(source, "auto", "auto", {}).marks_of_turns(tokens) == marks
