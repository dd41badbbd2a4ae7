"""POST /v1/responses, with the official client as the judge of its form."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.endpoint.in_process import BUNDLED_MODEL

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ITEM = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}


def test_a_response_has_the_text_of_the_same_chat_and_says_that_it_is_not_stored(bundled):
    response = bundled.responses.create(model=BUNDLED_MODEL, input="hello", temperature=0, max_output_tokens=3)
    messages: Any = [{"role": "user", "content": "hello"}]
    chat = bundled.chat.completions.create(model=BUNDLED_MODEL, messages=messages, temperature=0, max_tokens=3)
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert response.model_extra == {"store": False, "seed": response.model_extra["seed"]}  # type: ignore[index]
    assert response.usage.output_tokens == 3  # type: ignore[union-attr]


def test_a_forced_call_is_streamed_in_events_that_add_up_to_the_whole_response(bundled):
    request: Any = {"model": BUNDLED_MODEL, "input": "hello", "tools": TOOLS, "temperature": 0}
    request["tool_choice"] = {"type": "function", "name": "weather"}
    (whole,) = bundled.responses.create(**request).output
    jsonschema.validate(json.loads(whole.arguments), SCHEMA)
    with bundled.responses.stream(**request) as stream:
        events = list(stream)
        (streamed,) = stream.get_final_response().output
    assert (streamed.name, streamed.arguments) == (whole.name, whole.arguments)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == whole.arguments
    assert len(deltas) > 1


def test_a_text_has_the_form_that_it_is_asked_for(bundled):
    form: Any = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
    response = bundled.responses.create(model=BUNDLED_MODEL, input="hello", text=form, extra_body={"seed": 1})
    jsonschema.validate(json.loads(response.output_text), SCHEMA)


def test_thoughts_texts_and_calls_are_items_and_can_be_sent_back(scripted):
    scripted.backend.text = f"<think>\nso</think>Let me look.\n{CALL}"
    with scripted.client() as client:
        first = client.responses.create(model="m", input="hello", tools=TOOLS)
        thought, message, call = first.output
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        assert thought.content[0].text == "so"
        assert message.content[0].text == "Let me look."
        assert (call.name, call.arguments) == ("weather", '{"city": "Rome"}')
        with client.responses.stream(model="m", input="hello", tools=TOOLS) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response().output
        assert [item.type for item in streamed] == [item.type for item in first.output]
        assert streamed[1].content[0].text == "Let me look."
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        before = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "well, "}]}
        items: Any = [{"role": "user", "content": "hello"}, before, *(item.model_dump() for item in first.output)]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 C"}
        scripted.backend.text = "warm"
        second = client.responses.create(model="m", instructions="be kind", input=[*items, result], tools=TOOLS)
    assert second.output_text == "warm"
    for part in ("be kind", "<think>well, so</think>Let me look.", '"arguments": {"city": "Rome"}', "21 C"):
        assert part in scripted.backend.prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{**ITEM, "arguments": "{"}]}, "input[0].arguments"),
        ({"input": [{**ITEM, "name": "no name"}]}, "input[0].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**TOOLS[0], "parameters": {"type": "string"}}]}, "tools[0].parameters.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "text", "pattern": "a"}}}, "text.format.pattern"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"n": 2}, "n"),
    ],
)
def test_what_a_response_cannot_have_is_refused_by_name(bundled, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        bundled.responses.create(**{"model": BUNDLED_MODEL, "input": "hello", "extra_body": fields})
    assert caught.value.param == param
    assert "response_format" not in caught.value.message, "a response has another name for it"
