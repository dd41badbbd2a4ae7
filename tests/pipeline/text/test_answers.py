"""Calls and thoughts in texts of each family, whole and streamed at every split point."""

import json

import pytest

from pipeline.text.answer_parts import Answer, Thought, ToolCall, reasoning_tags
from pipeline.text.chat import AnswerForm, AnswerReader
from pipeline.text.tools.format import FAMILIES

GET, SET = ToolCall("get", '{"a": 1}'), ToolCall("set", "{}")
H_GET = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'
H_SET = '<tool_call>\n{"name": "set", "arguments": {}}\n</tool_call>'
L_GET = '{"name": "get", "parameters": {"a": 1}}'
M_GET = '{"name": "get", "arguments": {"a": 1}}'

# The text, its content and its calls.
TABLE: dict[str, list[tuple[str, str | None, list[ToolCall]]]] = {
    "hermes": [
        ("plain text \n", "plain text \n", []),
        ("", None, []),
        (H_GET, None, [GET]),
        (f"Let me look.\n{H_GET}", "Let me look.", [GET]),
        (f"{H_GET}\n{H_SET}", None, [GET, SET]),
        (f"a\n{H_GET}\nb\n{H_SET}", "a\n\nb", [GET, SET]),
        ('<tool_call>{"name":"get","arguments":"{\\"a\\": 1}"}</tool_call>', None, [GET]),
        (H_GET.removesuffix("\n</tool_call>"), None, [GET]),
        (
            H_GET.replace("1", '"</tool_call> \\" }"'),
            None,
            [ToolCall("get", '{"a": "</tool_call> \\" }"}')],
        ),
        ('<tool_call>\n{"name": "get", "argu', '<tool_call>\n{"name": "get", "argu', []),
        ("a <tool_ca", "a <tool_ca", []),
        ("<tool_call>", "<tool_call>", []),
        ("<tool_call>{bad}</tool_call>", "<tool_call>{bad}</tool_call>", []),
        (f"<tool_call>{{bad {H_GET}", "<tool_call>{bad", [GET]),
        (H_GET.replace("get", "other"), H_GET.replace("get", "other"), []),
        (H_GET.replace("1", "NaN"), H_GET.replace("1", "NaN"), []),
        (H_GET.replace("1", "1e400"), H_GET.replace("1", "1e400"), []),
        (H_GET.replace('{"name"', '{"type": "function", "name"'), None, [GET]),
        (H_GET.replace('"name"', '"type": "x", "name"'), H_GET.replace('"name"', '"type": "x", "name"'), []),
        (H_GET.replace('{"a": 1}', "[1]"), H_GET.replace('{"a": 1}', "[1]"), []),
        (H_GET.replace("</", "x</"), H_GET.replace("</", "x</"), []),
    ],
    "llama3": [
        ("plain", "plain", []),
        (L_GET, None, [GET]),
        (L_GET.replace("parameters", "arguments"), None, [GET]),
        (f'<|python_tag|>{L_GET}; {{"name": "set", "parameters": {{}}}}', None, [GET, SET]),
        ('{"name": "x", "parameters": {}} is JSON', '{"name": "x", "parameters": {}} is JSON', []),
        ('{"answer": 1}', '{"answer": 1}', []),
        ('{"name": "get", "par', '{"name": "get", "par', []),
        (f"so: {L_GET}", f"so: {L_GET}", []),
        (L_GET.replace('{"name"', '{"type": "function", "name"'), None, [GET]),
        (f'{{"type": "function", "function": {L_GET}}}', None, [GET]),
        (f'{L_GET}\n{{"name": "set", "parameters": {{}}}}', None, [GET, SET]),
        (f'{L_GET}\n{{"x": 1}}', '\n{"x": 1}'.lstrip(), [GET]),
        (f"so: <|python_tag|>{L_GET}", "so:", [GET]),
        ('<|python_tag|>get.call(a="1")', '<|python_tag|>get.call(a="1")', []),
    ],
    "mistral": [
        ("plain [", "plain [", []),
        (f"[TOOL_CALLS] [{M_GET}]", None, [GET]),
        (f'so [TOOL_CALLS][{M_GET}, {{"name": "set", "arguments": {{}}}}]', "so", [GET, SET]),
        (f"[TOOL_CALLS] [{M_GET}", f"[TOOL_CALLS] [{M_GET}", []),
        ("[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
        ("[TOOL_CALLS] []", "[TOOL_CALLS] []", []),
        (f"[TOOL_CALLS] {M_GET}", None, [GET]),
    ],
    "mistral_named": [
        ('[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]set{}', None, [GET, SET]),
        ('[TOOL_CALLS]get[ARGS]{"a"', '[TOOL_CALLS]get[ARGS]{"a"', []),
        ('[TOOL_CALLS]get[CALL_ID]1aB[ARGS]{"a": 1}[TOOL_CALLS]set[CALL_ID]2[ARGS]{}', None, [GET, SET]),
        ("[TOOL_CALLS]get[CALL_ID]1{}", "[TOOL_CALLS]get[CALL_ID]1{}", []),
        ("[TOOL_CALLS]get[CALL_ID]", "[TOOL_CALLS]get[CALL_ID]", []),
    ],
}
ROWS = [(family, *row) for family, rows in TABLE.items() for row in rows]


def read(form: AnswerForm, *pieces: str) -> Answer:
    answer, reader = Answer(), AnswerReader(form)
    for piece in pieces:
        answer.add(reader.push(piece))
    answer.add(reader.finish())
    return answer


@pytest.mark.parametrize(("family", "text", "content", "calls"), ROWS)
def test_an_answer_has_its_content_and_calls_wherever_its_text_is_split(family, text, content, calls):
    form = AnswerForm(family=FAMILIES[family], names=frozenset({"get", "set"}))
    expected = Answer(None, content, calls)
    assert form.read(text) == expected
    for split in range(len(text) + 1):
        assert read(form, text[:split], text[split:]) == expected
    assert read(form, *text) == expected


FORCED = {
    "hermes": f"{H_GET}\n{H_SET}",
    "llama3": L_GET,
    "mistral": f'[TOOL_CALLS] [{M_GET}, {{"name": "set", "arguments": {{}}}}]',
    "mistral_named": '[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]set[ARGS]{}',
}


@pytest.mark.parametrize("family", FORCED)
def test_forced_calls_come_as_they_are_written_and_a_text_that_is_cut_off_keeps_what_it_has(family):
    form = AnswerForm(family=FAMILIES[family], names=frozenset({"get", "set"}), is_forced=True)
    text = FORCED[family]
    assert form.read(text) == Answer(None, None, [GET] if family == "llama3" else [GET, SET])
    for end in range(len(text)):
        cut = text[:end]
        whole = form.read(cut)
        assert read(form, *cut) == whole
        assert "".join(call.arguments for call in whole.calls) in '{"a": 1}{}'
        assert not cut or whole.calls or whole.content == cut


L_SPREAD = '{\n  "name" : "get",\n  "parameters":\n  {"a": 1}\n}'
# Answers that are calls or a text of a form: the text, its content, and its calls.
EITHER: dict[str, list[tuple[str, str | None, list[ToolCall]]]] = {
    "hermes": [
        ('{"a": "<tool_call>"}', '{"a": "<tool_call>"}', []),
        (json.dumps({"a": H_GET}), json.dumps({"a": H_GET}), []),
        (f"x{H_GET}", f"x{H_GET}", []),
        (" \n{}\n ", " \n{}\n ", []),
        ("<tool", "<tool", []),
        (H_GET, None, [GET]),
        (f"{H_GET}\n{H_SET}", None, [GET, SET]),
        (H_GET.replace("1", '"<tool_call> {}"'), None, [ToolCall("get", '{"a": "<tool_call> {}"}')]),
    ],
    "llama3": [
        ('{"name": "get", "age": 1}', '{"name": "get", "age": 1}', []),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        (json.dumps({"a": L_GET}), json.dumps({"a": L_GET}), []),
        (f"[{L_GET}]", f"[{L_GET}]", []),
        (f"<|python_tag|>{L_GET}", f"<|python_tag|>{L_GET}", []),
        ('{\n "name": "g', '{\n "name": "g', []),
        (L_GET, None, [GET]),
        (L_SPREAD, None, [GET]),
        ('{"name":"set","parameters":{}}', None, [SET]),
    ],
    "mistral": [
        ('["[TOOL_CALLS]"]', '["[TOOL_CALLS]"]', []),
        ('{"a": "[TOOL_CALLS] [{}]"}', '{"a": "[TOOL_CALLS] [{}]"}', []),
        ("[", "[", []),
        (f"[TOOL_CALLS] [{M_GET}]", None, [GET]),
        (f'[TOOL_CALLS] [{M_GET}, {{"name": "set", "arguments": {{}}}}]', None, [GET, SET]),
    ],
    "mistral_named": [
        ('{"a": "[TOOL_CALLS]get[ARGS]{}"}', '{"a": "[TOOL_CALLS]get[ARGS]{}"}', []),
        ('[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]set[ARGS]{}', None, [GET, SET]),
    ],
}


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"), [(family, *row) for family, rows in EITHER.items() for row in rows]
)
@pytest.mark.parametrize("thought", ["", "<think>so <tool_call> so</think>\n\n"])
def test_nothing_in_a_text_of_a_form_is_a_call_wherever_it_is_split(family, text, content, calls, thought):
    tags = reasoning_tags("think", None) if thought else None
    form = AnswerForm(tags, Thought.FREE, FAMILIES[family], frozenset({"get", "set"}), has_form=True)
    if thought and content is not None:
        content = content.lstrip()
    expected = Answer("so <tool_call> so" if thought else None, content, calls)
    whole = thought + text
    assert form.read(whole) == expected
    for split in range(len(whole) + 1):
        assert read(form, whole[:split], whole[split:]) == expected
    assert read(form, *whole) == expected


@pytest.mark.parametrize("text", ['{"a": "<tool_call>", "b": ["<tool_call>"]}', "[1]", "[TOOL", "yes"])
def test_a_text_of_a_form_is_sent_as_it_comes_once_it_can_be_no_call(text):
    for family in FAMILIES.values():
        reader = AnswerReader(AnswerForm(family=family, names=frozenset({"get"}), has_form=True))
        num_held = 0
        for index, character in enumerate(text):
            events = reader.push(character)
            assert not events or index + 1 - num_held == sum(len(event.text) for event in events)  # type: ignore[union-attr]
            num_held = index + 1 if events else num_held
        assert num_held >= len(text) - 1 or family.begins_call(text, frozenset({"get"})) is None


@pytest.mark.parametrize(
    ("thought", "text", "reasoning", "content"),
    [
        (Thought.OPEN, "\n so so \n</think>\n\nyes ", "so so", "yes "),
        (Thought.OPEN, "never ends", "never ends", None),
        (Thought.OPEN, "</think>yes", None, "yes"),
        (Thought.OPEN, "a</thi", "a</thi", None),
        (Thought.FREE, "<think>\nso\n</think>\nyes", "so", "yes"),
        (Thought.FREE, "no <think>thought</think>", None, "no <think>thought</think>"),
        (Thought.FREE, "<thin", None, "<thin"),
        (Thought.FREE, "\n\nyes", None, "\n\nyes"),
        (Thought.CLOSED, "<think>a</think>b", None, "<think>a</think>b"),
    ],
)
def test_a_thought_is_told_from_the_answer_wherever_the_text_is_split(thought, text, reasoning, content):
    form, expected = AnswerForm(reasoning_tags("think", None), thought), Answer(reasoning, content)
    assert form.read(text) == expected
    for split in range(len(text) + 1):
        assert read(form, text[:split], text[split:]) == expected
    assert read(form, *text) == expected


def test_a_call_inside_a_thought_is_none_and_one_behind_it_is():
    form = AnswerForm(reasoning_tags("think", None), Thought.OPEN, FAMILIES["hermes"], frozenset({"get"}))
    assert form.read(f"{H_GET}</think>{H_GET}") == Answer(H_GET, None, [GET])


def test_ids_of_calls_are_those_that_templates_take():
    assert FAMILIES["mistral"].new_id("x").isalnum()
    assert len(FAMILIES["mistral"].new_id("x")) == 9
    assert FAMILIES["hermes"].new_id("x") == FAMILIES["hermes"].new_id("x") != FAMILIES["hermes"].new_id("y")


def test_many_broken_calls_are_read_in_little_time():
    text = '<tool_call>{"name": "' * 3000
    form = AnswerForm(family=FAMILIES["hermes"], names=frozenset({"get"}))
    assert form.read(text).content == text
    assert json.loads(form.read(H_GET).calls[0].arguments) == {"a": 1}
