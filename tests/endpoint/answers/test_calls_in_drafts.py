"""Calls that come many tokens at once, as accepted drafts do: the events of a stream add up to the whole answer."""

from typing import Any

import pytest

from tests.endpoint.answers.test_tools import LLAMA, TOOLS, USER, ask
from tests.endpoint.scripted import TEMPLATE, scripted_server

FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALLS = ("weather", '{"city": "é ✓"}', "clock", "{}", "weather", '{"city": "}; {"}')
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
H, L = (f'{{"name": "%s", "{name}": %s}}' for name in ("arguments", "parameters"))
TAGGED, NAMED = f"<tool_call>\n{H}\n</tool_call>", "[TOOL_CALLS]%s[ARGS]%s"
MISTRAL, MISTRAL_NAMED = f"{PLAIN}[TOOL_CALLS]", f"{PLAIN}[TOOL_CALLS][ARGS]"
# A family's template, an answer of three calls, and whether a grammar holds the answer to calls.
ANSWERS = {
    "hermes": (TEMPLATE, f"<think>\nso\n</think>\n\nLook: {TAGGED}{TAGGED} and\n{TAGGED} .", False),
    "hermes forced": (TEMPLATE, "\n".join([TAGGED] * 3), True),
    "llama3": (LLAMA, f"<|python_tag|>{L}; {L};{L}", False),
    "mistral": (MISTRAL, f"so[TOOL_CALLS] [{H},{H}][TOOL_CALLS][{H}]", False),
    "mistral forced": (MISTRAL, f"[TOOL_CALLS] [{H}, {H}, {H}]", True),
    "mistral named": (MISTRAL_NAMED, f"so {NAMED}{NAMED} [TOOL_CALLS]%s%s", False),
    "mistral named forced": (MISTRAL_NAMED, NAMED * 3, True),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_that_come_together_are_those_of_the_whole_answer_wherever_a_round_ends(name):
    template, text, is_forced = ANSWERS[name]
    choice: Any = {"tool_choice": "required"} if is_forced else {}
    chats, responses = [], []
    with scripted_server(template) as server, server.client() as client:
        server.backend.text = text % CALLS
        length = len(server.backend.codec.encode(server.backend.text, is_chat=True))
        for cuts in [(), *((cut,) for cut in range(1, length, 5)), range(1, length), range(9, length, 9)]:
            server.backend.cuts = tuple(cuts)
            message, reason = ask(client, model="m", tools=TOOLS, **choice)
            found = [part for call in message.tool_calls for part in (call.function.name, call.function.arguments)]
            assert found == list(CALLS)
            chats.append((message.content, message.model_extra, reason))
            texts: list[str] = []
            for event in client.responses.create(model="m", input=USER["content"], tools=FLAT, stream=True, **choice):
                if event.type == "response.output_item.added":
                    texts.append("")
                elif event.type.endswith(".delta"):
                    texts[-1] += event.delta  # type: ignore[union-attr]
            response = event.response.model_dump()  # type: ignore[union-attr]
            told = [item.get("arguments") or item["content"][0]["text"] for item in response["output"]]
            assert texts == told
            responses.append([item["type"] for item in response["output"]] + told)
    assert all(chat == chats[0] for chat in chats)
    assert all(response == responses[0] for response in responses)
