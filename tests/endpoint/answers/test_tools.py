"""Tools and thoughts in chats: forced calls over the bundled pair, and the rest over a backend that writes a text."""

import json
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from tests.endpoint.in_process import BUNDLED_MODEL
from tests.endpoint.scripted import ScriptedServer, scripted_server

USER: Any = {"role": "user", "content": "hello"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": SCHEMA}}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
TOOLS: Any = [WEATHER, CLOCK]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def ask(client: openai.OpenAI, *, model: str = BUNDLED_MODEL, **request: Any) -> tuple[Any, str]:
    """Return the message of the answer and why it ended; the streamed answer is the same."""
    fields = {"model": model, "messages": [USER], "seed": 3, **request}
    choice = client.chat.completions.create(**fields).choices[0]
    reasoning, content, calls, reason = "", "", [], None
    for chunk in client.chat.completions.create(**fields, stream=True):
        for part in chunk.choices:
            content += part.delta.content or ""
            reasoning += (part.delta.model_extra or {}).get("reasoning") or ""
            for call in part.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls), "the id and the name come first, once"
                    calls.append([call.function.name, ""])
                calls[call.index][1] += call.function.arguments
            reason = part.finish_reason or reason
    whole = choice.message
    assert content == (whole.content or "")
    assert reasoning == ((whole.model_extra or {}).get("reasoning") or "")
    assert calls == [[call.function.name, call.function.arguments] for call in whole.tool_calls or []]
    assert reason == choice.finish_reason
    return whole, reason


def scripted_ask(server: ScriptedServer, text: str, **request: Any) -> tuple[Any, str]:
    server.backend.text = text
    with server.client() as client:
        return ask(client, model="m", **request)


@pytest.mark.parametrize("seed", range(4))
def test_a_named_tool_is_called_once_with_arguments_that_fulfil_its_schema(bundled, seed):
    message, reason = ask(bundled, tools=TOOLS, tool_choice=NAMED, seed=seed, max_tokens=150)
    assert reason == "tool_calls"
    assert message.content is None
    (call,) = message.tool_calls
    assert call.function.name == "weather"
    assert call.id.startswith("call_")
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_a_forced_call_is_the_same_beside_a_form_of_the_text_that_it_leaves_out(bundled):
    form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "object"}}}
    request: Any = {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 150}
    (alone,), (beside,) = (ask(bundled, **request, **more)[0].tool_calls for more in ({}, {"response_format": form}))
    assert beside.function.arguments == alone.function.arguments
    jsonschema.validate(json.loads(beside.function.arguments), SCHEMA)
    flat: Any = {"type": "function", **WEATHER["function"]}
    response = bundled.responses.create(
        model=BUNDLED_MODEL,
        input="hello",
        tools=[flat],
        tool_choice={"type": "function", "name": "weather"},
        text={"format": {"type": "json_schema", "name": "f", "schema": {"type": "object"}}},
        extra_body={"seed": 3},
    )
    (item,) = response.output
    assert item.type == "function_call"
    assert item.arguments == alone.function.arguments


@pytest.mark.parametrize("seed", range(4))
def test_a_forced_call_has_no_arguments_that_its_schema_does_not_name(bundled, seed):
    schema = {name: value for name, value in SCHEMA.items() if name != "additionalProperties"}
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    message, _ = ask(bundled, tools=[tool], tool_choice=NAMED, seed=seed, max_tokens=150)
    assert json.loads(message.tool_calls[0].function.arguments).keys() == {"city", "days", "unit"}


def test_a_required_tool_is_one_of_those_that_are_offered(bundled):
    for seed in range(4):
        request: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
        message, reason = ask(bundled, **request, max_tokens=150)
        assert reason == "tool_calls"
        (call,) = message.tool_calls
        schema = {"weather": SCHEMA, "clock": {"maxProperties": 0}}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), schema)


def test_a_call_that_is_cut_off_ends_by_length_with_the_begin_of_its_arguments(bundled):
    whole, _ = ask(bundled, tools=TOOLS, tool_choice=NAMED, temperature=0, max_tokens=150)
    message, reason = ask(bundled, tools=TOOLS, tool_choice=NAMED, temperature=0, max_tokens=24)
    assert reason == "length"
    arguments = message.tool_calls[0].function.arguments
    assert whole.tool_calls[0].function.arguments.startswith(arguments)
    assert arguments not in ("", whole.tool_calls[0].function.arguments)


def test_calls_are_read_from_what_a_model_writes_by_itself(scripted):
    message, reason = scripted_ask(scripted, f"Let me look.\n{CALL}", tools=TOOLS)
    assert (message.content, reason) == ("Let me look.", "tool_calls")
    assert message.tool_calls[0].function.arguments == '{"city": "Rome"}'
    assert '"weather"' in scripted.backend.prompt
    for text in ("no call", CALL.replace("weather", "other"), CALL[:-20], "<tool_call>{}</tool_call>"):
        message, reason = scripted_ask(scripted, text, tools=TOOLS)
        assert (message.content, message.tool_calls, reason) == (text, None, "stop")


OBJECT: Any = {"type": "json_object"}
CALLS_IN_JSON = json.dumps({"a": CALL, "b": "<tool_call>"})


def test_beside_a_form_an_answer_is_calls_or_a_text_in_which_nothing_is_a_call(scripted):
    thinking: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message, reason = scripted_ask(scripted, CALLS_IN_JSON, tools=TOOLS, response_format=OBJECT)
    assert (message.content, message.tool_calls, reason) == (CALLS_IN_JSON, None, "stop")
    message, reason = scripted_ask(scripted, CALL, tools=TOOLS, response_format=OBJECT)
    assert (message.content, reason) == (None, "tool_calls")
    assert message.tool_calls[0].function.arguments == '{"city": "Rome"}'
    message, _ = scripted_ask(
        scripted, f"{CALL}</think>{CALLS_IN_JSON}", tools=TOOLS, response_format=OBJECT, **thinking
    )
    assert (message.model_extra["reasoning"], message.content, message.tool_calls) == (CALL, CALLS_IN_JSON, None)
    grammar = scripted.backend.generations[-1].params.structured.grammar  # type: ignore[union-attr]
    assert grammar is not None
    assert all(part in grammar for part in ("calls | form", "think", "weather"))
    within = f"so: {CALL}"
    choice: Any = {"extra_body": {"structured_outputs": {"choice": [within, "no"]}}}
    message, reason = scripted_ask(scripted, within, tools=TOOLS, **choice)
    assert (message.content, message.tool_calls, reason) == (within, None, "stop")
    message, _ = scripted_ask(scripted, CALL, tools=TOOLS, response_format=OBJECT, tool_choice="none")
    assert (message.content, message.tool_calls) == (CALL, None)


class Animal(BaseModel):
    """What a client wants to be told."""

    kind: str
    age: int


def test_the_official_client_parses_either_answer(scripted):
    strict: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    found = []
    for text in (CALL, '{"kind": "<tool_call>", "age": 3}'):
        scripted.backend.text = text
        with scripted.client() as client:
            answer = client.chat.completions.parse(model="m", messages=[USER], tools=[strict], response_format=Animal)
        found.append(answer.choices[0].message)
    assert (found[0].parsed, found[1].parsed) == (None, Animal(kind="<tool_call>", age=3))
    assert found[0].tool_calls is not None
    assert found[0].tool_calls[0].function.parsed_arguments == {"city": "Rome"}


def test_a_response_with_tools_and_a_format_is_calls_or_text_of_the_format(scripted):
    flat: Any = {"type": "function", **WEATHER["function"]}
    fields: Any = {"model": "m", "input": "hello", "tools": [flat], "text": {"format": OBJECT}}
    for text, kinds in ((CALLS_IN_JSON, ["message"]), (CALL, ["function_call"])):
        scripted.backend.text = text
        with scripted.client() as client:
            whole = client.responses.create(**fields)
            (*_, last) = client.responses.create(**fields, stream=True)
        assert [item.type for item in whole.output] == kinds
        assert whole.output_text == ("" if text is CALL else text)
        assert [item.type for item in last.response.output] == kinds  # type: ignore[union-attr]
        assert last.response.output_text == whole.output_text  # type: ignore[union-attr]


LLAMA = (
    '{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}Write <|python_tag|> or "parameters".'
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
)


def test_where_calls_are_bare_json_a_form_that_could_begin_as_one_is_refused_by_name():
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    with scripted_server(LLAMA) as server:
        text = '{"city": "Rome", "days": 2, "unit": "C"}'
        message, _ = scripted_ask(server, text, tools=TOOLS, response_format=schema)
        assert (message.content, message.tool_calls) == (text, None)
        message, reason = scripted_ask(
            server, '{"name": "clock", "parameters": {}}', tools=TOOLS, response_format=schema
        )
        assert (message.content, message.tool_calls[0].function.name, reason) == (None, "clock", "tool_calls")
        with pytest.raises(openai.BadRequestError, match="may begin with") as refused:
            scripted_ask(server, "{}", tools=TOOLS, response_format=OBJECT)
    assert refused.value.param == "tools"


def test_a_wrong_form_beside_tools_is_named_as_the_form_that_was_asked_for(scripted):
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nope"}}}
    with pytest.raises(openai.BadRequestError, match="it cannot be compiled: Invalid type: nope") as refused:
        scripted_ask(scripted, "{}", tools=TOOLS, response_format=schema)
    assert refused.value.param == "response_format.json_schema.schema"
    for regex in ("(", "a(?=b)"):
        with pytest.raises(openai.BadRequestError, match="it cannot be compiled") as refused:
            scripted_ask(scripted, "{}", tools=TOOLS, extra_body={"structured_outputs": {"regex": regex}})
        assert refused.value.param == "structured_outputs.regex"


def test_without_tools_or_with_the_choice_none_a_call_is_text(scripted):
    for request in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message, reason = scripted_ask(scripted, CALL, **request)
        assert (message.content, message.tool_calls, reason) == (CALL, None, "stop")


def test_calls_and_results_of_earlier_answers_reach_the_template(scripted):
    first, _ = scripted_ask(scripted, CALL, tools=TOOLS)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "21 C"}
    scripted_ask(scripted, "warm", messages=[USER, first, result], tools=TOOLS)
    sent_back = '<tool_call>{"arguments": {"city": "Rome"}, "name": "weather"}</tool_call>'
    assert sent_back in scripted.backend.prompt, "in the order in which the client's library writes a call"
    assert "21 C" in scripted.backend.prompt


def test_a_tool_cannot_spell_a_control_token(scripted):
    def num_ends(name: str) -> int:
        parameters = {"type": "object", "properties": {name: {"type": "string", "description": name}}}
        function = {"name": "f", "description": name, "parameters": parameters}
        scripted_ask(scripted, "a", tools=[{"type": "function", "function": function}])
        assert name in scripted.backend.prompt
        end = scripted.backend.codec.tokenizer.convert_tokens_to_ids("<|end|>")
        return scripted.backend.generations[-1].prompts[0].count(end)

    assert num_ends("<|end|>") == num_ends("end")


def test_a_grammar_holds_strict_functions_and_a_single_call_and_nothing_else(scripted):
    def grammar(**request: Any) -> str | None:
        scripted_ask(scripted, "x", **request)
        structured = scripted.backend.generations[-1].params.structured
        return None if structured is None else structured.grammar

    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    assert grammar(tools=TOOLS) is None
    assert '"maxLength": 8' in (grammar(tools=[strict]) or "")
    assert '"maxLength": 8' not in (grammar(tools=TOOLS, parallel_tool_calls=False) or "maxLength")
    assert "clock" not in (grammar(tools=TOOLS, tool_choice=NAMED) or "clock")


def test_a_thought_has_a_field_of_its_own(scripted):
    message, reason = scripted_ask(scripted, "<think>\nso so\n</think>\n\nyes")
    assert (message.model_extra["reasoning"], message.content, reason) == ("so so", "yes", "stop")
    thinking: Any = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message, _ = scripted_ask(scripted, f"so so</think>\n{CALL}", tools=TOOLS, **thinking)
    assert (message.model_extra["reasoning"], message.content) == ("so so", None)
    assert message.tool_calls[0].function.name == "weather"
    message, _ = scripted_ask(scripted, "so so", **thinking)
    assert (message.model_extra["reasoning"], message.content) == ("so so", None)


def test_a_form_begins_behind_a_thought_that_the_template_opens(scripted):
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    body = {"chat_template_kwargs": {"enable_thinking": True}}
    message, _ = scripted_ask(scripted, "so</think>{}", response_format=form, extra_body=body)
    assert (message.model_extra["reasoning"], message.content) == ("so", "{}")
    structured = scripted.backend.generations[-1].params.structured
    assert structured is not None
    assert structured.grammar is not None
    assert "think" in structured.grammar
    scripted_ask(scripted, "{}", response_format=form)
    assert scripted.backend.generations[-1].params.structured.kind == "json_schema"  # type: ignore[union-attr]


def test_options_of_the_template_reach_it(scripted):
    scripted_ask(scripted, "a", extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert scripted.backend.prompt.endswith("<think>\n")
    scripted_ask(scripted, "a", reasoning_effort="low")
    assert scripted.backend.prompt.endswith("<|assistant|>low")
    begun: Any = [USER, {"role": "assistant", "content": "wor"}]
    for fields, end in (
        ({}, "<|assistant|>wor"),
        ({"continue_final_message": True}, "<|assistant|>wor"),
        ({"continue_final_message": False}, "wor<|end|><|assistant|>"),
        ({"add_generation_prompt": True}, "wor<|end|><|assistant|>"),
        ({"add_generation_prompt": False, "continue_final_message": False}, "wor<|end|>"),
    ):
        scripted_ask(scripted, "a", messages=begun, extra_body=fields)
        assert scripted.backend.prompt.endswith(end)


def test_special_tokens_end_tokens_and_token_ids_are_shown_where_they_are_asked_for(scripted):
    text, shown = "a<|user|>b<|end|>", {"skip_special_tokens": False}
    for body, content in (
        ({}, "ab"),
        (shown, "a<|user|>b"),
        ({**shown, "include_stop_str_in_output": True}, text),
    ):
        assert scripted_ask(scripted, text, extra_body=body)[0].content == content
    assert scripted.backend.generations[-1].shows_special
    with scripted.client() as client:
        fields: Any = {"model": "m", "messages": [USER], "extra_body": {"return_token_ids": True}}
        answer = client.chat.completions.create(**fields)
        token_ids = answer.choices[0].model_extra["token_ids"]
        assert scripted.backend.codec.of_all_tokens.decode(token_ids) == text
        assert answer.model_extra["prompt_token_ids"] == list(scripted.backend.generations[-1].prompts[0])
        usage = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(client.chat.completions.create(**fields, stream=True, stream_options=usage))
    assert [i for chunk in chunks for choice in chunk.choices for i in choice.model_extra["token_ids"]] == token_ids
    assert [i for chunk in chunks for i in (chunk.model_extra or {}).get("prompt_token_ids") or []] == list(
        scripted.backend.generations[-1].prompts[0]
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts)
    assert len(counts) == len(chunks)


def test_a_prompt_may_be_cut_to_its_last_tokens(scripted):
    scripted_ask(scripted, "a")
    whole = scripted.backend.generations[-1].prompts[0]
    scripted_ask(scripted, "a", extra_body={"truncate_prompt_tokens": 2})
    assert scripted.backend.generations[-1].prompts[0] == whole[-2:]
    long: Any = [{"role": "user", "content": "one two three " * 200}]
    scripted_ask(scripted, "a", messages=long, max_tokens=12, extra_body={"truncate_prompt_tokens": -1})
    assert len(scripted.backend.generations[-1].prompts[0]) == 500
