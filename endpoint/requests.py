"""Bodies of HTTP requests: how one is read, what the OpenAPI document says of it, and what the engine is asked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from decoding.sampling_params import SamplingParams
from endpoint.http.errors import ApiError, refusal
from pipeline.errors import FieldError, shown_name
from pipeline.requests.asked import Asked
from pipeline.requests.body import TEXT, Body, asks, read, text, unsupported
from pipeline.requests.texts import ChatAsked, CompletionAsked, Conversation, ResponseAsked
from pipeline.requests.token_kinds import TOKEN_IDS
from pipeline.text.chat import Chat
from pipeline.text.templates.messages import check_calls, check_id, content_texts
from pipeline.text.tools.asked import read_tools

_Body = TypeVar("_Body", bound=Body)
_FUNCTION = {"name", "description", "parameters", "strict"}
_ROLES = ("system", "developer", "user", "assistant")
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_MAX_ITEMS = 65_536
_IGNORED = {"id", "status", "type", "phase"}  # of items that clients send back: they say nothing of the chat
_MODEL = "The model, by a name under which it is served."


async def body_of(kind: type[_Body], request: Request) -> _Body:
    """Return what the body of a request asks for. Raises ApiError, and FieldError for the first wrong field."""
    data = await request.body()
    if not data:
        raise ApiError(400, "the body: is required", code="missing_required_parameter")
    return read(kind, json.loads(data))


def documented(kind: type[Body]) -> dict[str, Any]:
    """Return what the OpenAPI document says of a route that takes such bodies."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.schema()}}}}


def prompts_of(asked: Asked) -> Mapping[str, str | list[Any] | Chat]:
    """Return each prompt by the path of its field in the body: a text, token ids or a chat. Raises FieldError."""
    match asked:
        case CompletionAsked():
            return asked.prompts
        case ChatAsked():
            return {"messages": Chat.of(asked.messages, asked.of_chat())}
        case ResponseAsked():
            return {"input": chat_of_response(asked)}
    raise AssertionError(f"{type(asked).__name__} has no prompts")


def params_of(asked: Asked) -> SamplingParams:
    """Return what each sample is drawn with. Raises FieldError, and ApiError for fields that contradict each other.

    Whether a grammar can be compiled is known where the engine is.
    """
    given = {"max_tokens": asked.default_max_tokens, **asked.sampling(), "n": asked.num_samples, "seed": None}
    if asked.num_samples > asked.num_choices:
        given["logprobs"] = given.get("logprobs") or 0  # which choices are best is decided by them
    given["structured"] = given.get("structured") or None
    try:
        return SamplingParams(**given)
    except ValueError as error:
        raise refusal(str(error), asked.form_field) from error


def chat_of_response(asked: ResponseAsked) -> Chat:
    """Return the chat that is to be rendered; a new message begins. Raises FieldError."""
    tools = asked.tools
    if isinstance(tools, list):
        tools = [_as_in_chats(tool) for tool in tools]
    try:
        found = read_tools(tools, _as_in_chats(asked.tool_choice), asked.parallel_tool_calls)
    except FieldError as error:
        where = error.where.replace(".function", "", 1)  # a function's fields are the tool's own here
        raise FieldError(where, error.reason, code=error.code) from error
    return Chat(
        _messages(asked.input, asked.instructions),
        found,
        options=asked.chat_template_kwargs or {},
        effort=asked.effort,
        effort_field="reasoning.effort",
        begins=True,
    )


def _as_in_chats(value: Any) -> Any:
    """Return a tool, or the choice of one, as chats have it: the fields of its function one level deeper."""
    if not isinstance(value, dict) or value.get("type") != "function":
        return value
    rest = {name: each for name, each in value.items() if name not in _FUNCTION}
    return {**rest, "function": {name: each for name, each in value.items() if name in _FUNCTION}}


def _messages(value: Any, instructions: str | None) -> list[dict[str, Any]]:
    """Return the messages that an input stands for, behind the instructions. Raises FieldError."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(value, str):
        return [*messages, {"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise FieldError("input", "expected a string, or a list of at least one item")
    if len(value) > _MAX_ITEMS:
        raise FieldError("input", f"expected at most {_MAX_ITEMS} items, got {len(value)}")
    thought = ""
    for index, item in enumerate(value):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise FieldError(where, "expected an object")
        match item.get("type", "message"):
            case "message":
                message = _message(where, item)
                if message["role"] == "assistant" and thought:
                    message["reasoning_content"], thought = thought, ""
                messages.append(message)
            case "function_call":
                _add_call(where, item, messages, thought)
                thought = ""
            case "function_call_output":
                messages.append(_result(where, item))
            case "reasoning":
                thought += _thought(where, item)
            case str():
                raise FieldError(f"{where}.type", "this server does not support such items", is_unsupported=True)
            case _:
                raise FieldError(f"{where}.type", "expected a string")
    if all(message["role"] == "system" for message in messages):
        raise FieldError("input", "it has no message to answer")
    if instructions is not None and messages[1]["role"] == "system":  # most templates take one such message
        messages[:2] = [{"role": "system", "content": f"{instructions}\n\n{messages[1]['content']}"}]
    return messages


def _message(where: str, item: dict[str, Any]) -> dict[str, Any]:
    _refuse_others(where, item, {"role", "content"})
    role = item.get("role")
    if role not in _ROLES:
        raise FieldError(f"{where}.role", f"expected one of {', '.join(_ROLES)}")
    text = _text(f"{where}.content", item.get("content"))
    return {"role": "system" if role == "developer" else str(role), "content": text}


def _add_call(where: str, item: dict[str, Any], messages: list[dict[str, Any]], thought: str) -> None:
    """Add a call to the assistant's message before it, or to a new one."""
    _refuse_others(where, item, {"call_id", "name", "arguments"})
    try:
        check_id(f"{where}.call_id", item.get("call_id"))
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item["call_id"], "type": "function", "function": function}
        check_calls(where, [call])
    except FieldError as error:
        place = error.where.replace("[0].function", "", 1) if error.where.startswith(f"{where}[0]") else error.where
        raise FieldError(place, error.reason, code=error.code) from error
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": "", **({"reasoning_content": thought} if thought else {})})
    messages[-1].setdefault("tool_calls", []).append(call)


def _result(where: str, item: dict[str, Any]) -> dict[str, Any]:
    _refuse_others(where, item, {"call_id", "output"})
    check_id(f"{where}.call_id", item.get("call_id"))
    return {"role": "tool", "tool_call_id": item["call_id"], "content": _text(f"{where}.output", item.get("output"))}


def _thought(where: str, item: dict[str, Any]) -> str:
    _refuse_others(where, item, {"summary", "content"})
    return _text(f"{where}.content", item["content"]) if item.get("content") else ""


def _text(where: str, content: Any) -> str:
    texts = content_texts(where, content, _TEXTS, "text is")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        _refuse_others(f"{where}[{index}]", part, {"text", "annotations", "logprobs"})
    return "".join(texts)


def _refuse_others(where: str, item: dict[str, Any], known: set[str]) -> None:
    for name, value in item.items():
        if name not in known | _IGNORED and value not in (None, [], ""):
            raise unsupported(f"{where}.{shown_name(name)}")


@dataclass(frozen=True, kw_only=True)
class TokenizeBody(Conversation):
    """Body of POST /tokenize: a prompt, or the messages of a chat."""

    model: str | None = asks(text(512), _MODEL)
    prompt: str | None = asks(TEXT, "A text.")

    def check(self) -> None:
        """Raise FieldError for no prompt, for two, and for fields that only a chat has."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "give a prompt or messages, and not both")
        if self.messages is None and (others := self.of_chat()):
            raise FieldError(next(iter(others)), "it needs messages")

    @property
    def text(self) -> tuple[str, str | Chat]:
        """The name of the field that is given, and what it holds."""
        if self.prompt is not None:
            return "prompt", self.prompt
        return "messages", Chat.of(self.messages, self.of_chat())


@dataclass(frozen=True, kw_only=True)
class DetokenizeBody(Body):
    """Body of POST /detokenize."""

    tokens: list[Any] = asks(TOKEN_IDS, "The token ids of a text.", is_required=True)
    model: str | None = asks(text(512), _MODEL)
