"""Calls that come many tokens at once, as accepted drafts do: the events of a stream add up to the whole answer."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.endpoint.answers.test_tools import LLAMA, USER
from tests.endpoint.scripted import TEMPLATE, scripted_server

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
H, L, M = (f'{{"name": "%s", "{name}": %s}}' for name in ("arguments", "parameters", "arguments"))
CALLS = ("weather", '{"city": "é ✓"}', "clock", "{}", "weather", '{"city": "}; {"}')
TAGGED = f"<tool_call>\n{H}\n</tool_call>"
NAMED = "[TOOL_CALLS]%s[ARGS]%s"
# The template of a family, and answers that are three calls, which a model may write by itself or be held to.
FAMILIES: dict[str, tuple[str, dict[str, str]]] = {
    "hermes": (
        TEMPLATE,
        {
            "forced": "\n".join([TAGGED] * 3),
            "free": f"<think>\nso\n</think>\n\nLook: {TAGGED}{TAGGED} and\n{TAGGED} .",
        },
    ),
    "llama3": (LLAMA, {"free": f"<|python_tag|>{L}; {L};{L}"}),
    "mistral": (
        PLAIN + "[TOOL_CALLS]",
        {"forced": f"[TOOL_CALLS] [{M}, {M}, {M}]", "free": f"so[TOOL_CALLS] [{M},{M}][TOOL_CALLS][{M}]"},
    ),
    "mistral_named": (
        PLAIN + "[TOOL_CALLS][ARGS]",
        {"forced": NAMED * 3, "free": f"so {NAMED}{NAMED} [TOOL_CALLS]%s%s"},
    ),
}


def asked(client: httpx2.Client, path: str, **fields: Any) -> httpx2.Response:
    is_chat = path == "chat/completions"
    functions: Any = [{"name": name, "parameters": {"type": "object"}} for name in ("weather", "clock")]
    tools = [{"type": "function", **({"function": each} if is_chat else each)} for each in functions]
    own = {"messages": [USER]} if is_chat else {"input": "hello"}
    answer = client.post(f"/v1/{path}", json={"tools": tools, "seed": 3, **own, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def of_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The parts of a whole chat."""
    (choice,), message = body["choices"], body["choices"][0]["message"]
    calls = [list(call["function"].values()) for call in message.get("tool_calls") or ()]
    parts = {name: message.get(name) or "" for name in ("content", "reasoning")}
    return {**parts, "calls": calls, "reason": choice["finish_reason"], "usage": body["usage"]}


def of_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of a chat add up to."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    num_tokens, ids = 0, set()
    *grown, counts = chunks
    for choice in (chunk["choices"][0] for chunk in grown):
        change = choice["delta"]
        num_tokens += choice.get("draft_counts", {"num_tokens": 0})["num_tokens"]
        for name in ("content", "reasoning"):
            found[name] += change.get(name) or ""
        for call in change.get("tool_calls", ()):
            if "id" in call:
                ids.add(call["id"])
                found["calls"].append([call["function"]["name"], ""])
            assert call["index"] == len(found["calls"]) - 1, "a call begins once, and grows until another one begins"
            found["calls"][-1][1] += call["function"]["arguments"]
        found["reason"] = choice["finish_reason"]
    assert num_tokens == counts["usage"]["completion_tokens"]
    assert len(ids) == len(found["calls"])
    return found | {"usage": counts["usage"]}


def of_response(response: dict[str, Any]) -> dict[str, Any]:
    """The items of a whole response and its counts, without what another request has otherwise."""
    items = [{name: value for name, value in item.items() if "id" not in name} for item in response["output"]]
    return {"items": items, "status": response["status"], "usage": response["usage"]}


def of_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the events of a response add up to, which is what its last event has."""
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if "output_index" in event:
            assert event["output_index"] == len(texts) - (kind != "output_item.added"), "items come one by one"
        match kind.split("."):
            case ["output_item", "added"]:
                assert len(items) == len(texts), "an item begins where the one before it is done"
                texts.append("")
            case [*_, "delta"]:
                texts[-1] += event["delta"]
            case ["function_call_arguments" | "output_text" | "reasoning_text", "done"]:
                assert texts[-1] == event.get("arguments", event.get("text"))
            case ["output_item", "done"]:
                items.append(event["item"])
                assert texts[-1] in (items[-1].get("arguments"), items[-1].get("content", [{}])[0].get("text"))
    assert items == events[-1]["response"]["output"]
    return of_response(events[-1]["response"])


READERS: Any = {"chat/completions": (of_chat, of_chunks), "responses": (of_response, of_events)}
MORE: Any = {"chat/completions": {"include_draft_spans": True, "stream_options": {"include_usage": True}}}


@pytest.mark.parametrize(("family", "kind"), [(name, kind) for name, row in FAMILIES.items() for kind in row[1]])
def test_calls_that_come_together_are_those_of_the_whole_answer_wherever_a_round_ends(family: str, kind: str) -> None:
    template, texts = FAMILIES[family]
    choice: Any = {"tool_choice": "required"} if kind == "forced" else {}
    with scripted_server(template) as server, httpx2.Client(base_url=server.url, timeout=30) as client:
        backend = server.backend
        backend.text = texts[kind] % CALLS
        length = len(backend.codec.encode(backend.text, is_chat=True))
        for path, (of_whole, of_stream) in READERS.items():
            backend.cuts = ()
            whole = of_whole(asked(client, path, **choice).json())
            found = (
                whole["calls"]
                if "calls" in whole
                else [[item["name"], item["arguments"]] for item in whole["items"] if item["type"] == "function_call"]
            )
            assert [text for call in found for text in call] == list(CALLS)
            for cuts in [(), *((cut,) for cut in range(1, length, 3)), range(1, length), range(9, length, 9)]:
                backend.cuts = tuple(cuts)
                stream = asked(client, path, stream=True, **choice, **MORE.get(path, {}))
                lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
                assert of_stream(list(map(json.loads, lines))) == whole, cuts
