"""Streams whose ingress is lost in the middle: another one goes on, and the client sees one stream without a seam."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import Generation
from actors.engines.loading import load_codec
from actors.workers.replica import Replica
from endpoint.answers.choices import Choice
from endpoint.app import create_app
from endpoint.edge.install import EdgeSettings, install
from endpoint.gate.answer import HeldBody
from endpoint.gate.gate import Gate
from endpoint.http.bodies import Bodies, Limits
from endpoint.http.errors import ApiError
from endpoint.http.origin import EXTENSION, Deadline
from endpoint.service.backend import Replicas
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Models, Service, ServiceSettings
from pipeline.text.codec import TextCodec
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.in_process import BUNDLED, MODEL, Running, settings_of
from tests.endpoint.local_handle import Items, LocalHandle
from tests.endpoint.scripted import TEMPLATE, ScriptedBackend
from tests.endpoint.web import Answer, ask, served


class Mortal:
    """Processes with the same application; `lifetimes` says behind how many parts each is lost. The last one stays.

    As behind Serve's proxy, nothing more is sent then, and the engine is not told. `origins` are those that the
    processes were given, and `num_parts` is what they have sent, without the end of the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.lifetimes, self.origins, self.num_parts = app, list[int](), list[Any](), 0
        self._tasks = list[asyncio.Future[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.origins.append(scope["extensions"][EXTENSION])
        left, is_lost = self.lifetimes.pop(0) if self.lifetimes else None, asyncio.Event()

        async def send_while_alive(message: Message) -> None:
            nonlocal left
            if left is not None and message["type"] == "http.response.body":
                if left == 0:
                    is_lost.set()
                    await asyncio.Event().wait()
                left -= 1
            self.num_parts += bool(message.get("body"))
            await send(message)

        ends = asyncio.ensure_future(is_lost.wait())
        answering = asyncio.ensure_future(self._app(scope, receive, send_while_alive))
        self._tasks.append(answering)  # one that is lost stays until the server ends
        await asyncio.wait([answering, ends], return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        if answering.done():
            answering.result()


PROMPT = "hello world"
LENGTH = 40
COMPLETION = {"model": MODEL, "prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": True, "stream": True, "n": 2}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": LENGTH, "stream": True}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}}),
    "its scores": ("/v1/completions", {**COMPLETION, "logprobs": 2, "echo": True, "include_draft_spans": True}),
    "its counts": (
        "/v1/completions",
        {**COMPLETION, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "its drafts": (
        "/v1/completions",
        {**COMPLETION, "n": 1, "include_draft_spans": True, "stream_options": {"include_usage": True}},
    ),
    "chat": ("/v1/chat/completions", {**CHAT, "ignore_eos": True, "return_token_ids": True}),
    "response": ("/v1/responses", {"model": MODEL, "input": PROMPT, "max_output_tokens": LENGTH, "stream": True}),
}


@dataclass(frozen=True)
class Front(Running):
    """The gate before such processes."""

    mortal: Mortal
    replicas: Replicas
    service: Service

    @cached_property
    def whole(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each stream, which no ingress was lost over."""
        return {what: events_of(self.answer(what, seed=7)) for what in ASKED}

    def answer(self, what: str, *lifetimes: int, **fields: Any) -> Answer:
        path, body = ASKED[what]
        self.mortal.lifetimes[:], self.mortal.origins[:], self.mortal.num_parts = lifetimes, [], 0
        return ask(self.port, path, {**body, **fields})


@pytest.fixture(scope="module")
def front(text_pair: tuple[str, str]) -> Iterator[Front]:
    settings = settings_of(text_pair)
    metrics, replicas = ServingMetrics(MODEL), Replicas(LocalHandle(Replica(settings)), is_repeatable=True)
    service_settings = ServiceSettings(model=MODEL, per_request_spec_decode_metrics="detailed")
    service = Service(service_settings, load_codec(settings), replicas, metrics)
    app = create_app(Models(service))
    install(app, EdgeSettings(keys=None), metrics)
    mortal = Mortal(app)
    with served(Gate(EagerProxy(mortal), Limits())) as port:
        yield Front(port, settings, mortal, replicas, service)


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the events of a stream, which must be whole."""
    assert answer.status == 200
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a stream says in all, however its text is cut into events."""
    said: dict[str, Any] = {"texts": {}, "ids": {}, "ends": [], "usage": None, "roles": 0, "scores": {}, "spans": {}}
    for event in events:
        assert "error" not in event or event["error"] is None, event
        for choice in event.get("choices", ()):
            delta, index = choice.get("delta", choice), choice["index"]
            for name, value in (
                ("texts", delta.get("text", delta.get("content")) or ""),
                ("ids", choice.get("token_ids") or []),
                ("scores", (choice.get("logprobs") or {}).get("tokens") or []),
                ("spans", "".join(span["text"] for span in choice.get("draft_spans") or [])),
            ):
                said[name][index] = said[name].get(index, type(value)()) + value
            said["roles"] += delta.get("role") is not None
            if choice["finish_reason"] is not None:
                said["ends"].append((index, choice["finish_reason"], choice["seed"]))
        said["usage"] = event.get("usage") or said["usage"]
        if event.get("type") == "response.output_text.delta":
            said["texts"][0] = said["texts"].get(0, "") + event["delta"]
    if said["usage"] is not None:  # but how much of the prompt was in a cache
        said["usage"] = {name: count for name, count in said["usage"].items() if name != "prompt_tokens_details"}
    return said


def test_a_request_that_is_asked_for_again_has_the_rest_of_its_time(front, monkeypatch):
    monkeypatch.setattr(front.service, "settings", replace(front.service.settings, request_timeout_s=600.0))
    left, prepare, rewind = list[float](), Service.prepare, HeldBody.rewind

    async def note(self: Service, request: Any, call: Any) -> Any:
        left.append(call.deadline.ends_at - time.monotonic())
        return await prepare(self, request, replace(call, deadline=Deadline()))

    def rewind_late(self: HeldBody) -> None:
        self._came_at -= 590.0
        rewind(self)

    monkeypatch.setattr(Service, "prepare", note)
    monkeypatch.setattr(HeldBody, "rewind", rewind_late)
    told(events_of(front.answer("completion", 3, seed=7)))
    assert [round(each, -1) for each in left] == [600, 10]


@pytest.mark.parametrize("lifetime", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("what", ASKED)
def test_a_stream_goes_on_with_another_ingress_where_the_first_one_broke_off(front, what, lifetime):
    whole, broken = front.whole[what], events_of(front.answer(what, lifetime, seed=7))
    assert len(front.mortal.origins) == 2, "none was lost"
    assert told(broken) == told(whole)
    assert len({event.get("id") for event in broken}) == 1
    assert len({event.get("created") for event in broken}) == 1
    if what == "its drafts":
        counts = [choice["draft_counts"] for event in broken for choice in event["choices"]]
        *_, last = broken
        assert last["usage"]["completion_tokens"] == sum(each["num_tokens"] for each in counts)
        for name, of_all in (("num_draft_tokens",) * 2, ("num_accepted_tokens", "num_accepted_draft_tokens")):
            assert last["metrics"]["speculative_decoding"][of_all] == sum(each[name] for each in counts)
        has_steps = "per_step_drafted" in last["metrics"]["speculative_decoding"]
        assert has_steps == (lifetime == 0), "the first ones are lost with the first ingress"
        *_, last = whole
        for steps, of_all in (("drafted", "num_draft_tokens"), ("accepted", "num_accepted_draft_tokens")):
            metrics = last["metrics"]["speculative_decoding"]
            assert sum(metrics[f"per_step_{steps}"]) == metrics[of_all]
    if what == "response":
        assert [event["sequence_number"] for event in broken] == list(range(len(broken)))
        (ended,) = [
            event["response"] for event in broken if event["type"] in ("response.completed", "response.incomplete")
        ]
        assert ended["output"][0]["content"][0]["text"] == told(whole)["texts"][0]


def test_what_the_lost_ingress_had_asked_for_is_written_no_longer(front, monkeypatch):
    asked, recalled, generate = list[tuple[str, int]](), list[tuple[str, int]](), Replica.generate

    def note(self: Replica, generation: Generation) -> Any:
        asked.append((generation.call, generation.attempt))
        return generate(self, generation)

    monkeypatch.setattr(Replica, "generate", note)
    monkeypatch.setattr(Replica, "recall", lambda self, call, attempt: recalled.append((call, attempt)))
    told(events_of(front.answer("completion", 3, seed=7)))
    told(events_of(front.answer("completion", seed=7)))
    (call, _), second, (other, _) = asked
    assert [attempt for _, attempt in asked] == [1, 2, 1]
    assert recalled == [second] == [(call, 2)], "once, by the second ingress of the first request"
    assert other != call


def test_an_ingress_of_another_model_does_not_go_on_with_a_text(front, monkeypatch):
    prepare = Service.prepare

    async def of_another_model(self: Service, request: Any, call: Any) -> Any:
        if call.origin.reached:
            monkeypatch.setattr(front.service, "settings", replace(front.service.settings, fingerprint="another"))
        return await prepare(self, request, replace(call, deadline=Deadline()))

    monkeypatch.setattr(Service, "prepare", of_another_model)
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert last["error"]["code"] == "ingress_lost"


@pytest.mark.parametrize("lifetime", [1, 4])
def test_a_seed_that_the_request_does_not_give_is_the_same_in_both_ingresses(front, lifetime):
    said = told(events_of(front.answer("completion", lifetime)))
    seeds = {seed for _, _, seed in said["ends"]}
    assert len(seeds) == 1
    asked = {name: COMPLETION[name] for name in ("prompt", "max_tokens", "ignore_eos", "n")}
    texts = [row["text"] for row in front.offline(**asked, seed=seeds.pop())]
    assert [said["texts"][0], said["texts"][1]] == texts
    assert told(events_of(front.answer("completion")))["ends"] != said["ends"], "another request has another seed"


@pytest.mark.parametrize("what", ["completion", "response"])
def test_a_stream_of_which_only_the_end_of_the_connection_is_missing_is_over(front, what):
    whole = told(events_of(front.answer(what, seed=3)))
    answer = front.answer(what, front.mortal.num_parts, seed=3)
    assert len(front.mortal.origins) == 1, "another one was asked for nothing"
    assert told(events_of(answer)) == whole


def test_a_stream_that_two_ingresses_were_lost_over_ends_with_an_error(front):
    answer = front.answer("completion", 3, 5, seed=7)
    *_, last = events_of(answer)
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 2)
    assert "It is not tried again." in last["error"]["message"]


def test_an_engine_that_writes_something_else_adds_nothing_to_what_was_sent(front, monkeypatch):
    generate = LocalHandle.remote

    def otherwise(self: LocalHandle, generation: Generation) -> Items:
        is_second = len(front.mortal.origins) == 2
        return generate(self, replace(generation, seeds=(8,)) if is_second else generation)

    monkeypatch.setattr(LocalHandle, "remote", otherwise)
    *before, last = events_of(front.answer("completion", 3, seed=7, n=1, temperature=1.0))
    assert last["error"]["code"] == "internal_error"
    monkeypatch.undo()
    whole = told(events_of(front.answer("completion", seed=7, n=1, temperature=1.0)))
    assert whole["texts"][0].startswith(told(before)["texts"][0])


def test_a_stream_that_another_engine_cannot_continue_ends_with_an_error(front, monkeypatch):
    monkeypatch.setattr(front.replicas, "is_repeatable", False)
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 1)


def test_a_stream_for_which_the_gate_has_no_room_ends_with_an_error(front, monkeypatch):
    monkeypatch.setattr(Bodies, "keep", lambda self, body: False)
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 1)


def test_an_ingress_that_refuses_to_go_on_leaves_an_error(front, monkeypatch):
    prepare = Service.prepare

    async def refuse(self: Service, request: Any, call: Any) -> Any:
        if call.origin.reached:
            raise ApiError(400, "This one does not want to.")
        return await prepare(self, request, call)

    monkeypatch.setattr(Service, "prepare", refuse)
    *_, last = events_of(front.answer("chat", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 2)


def test_an_ingress_that_would_have_shown_other_text_ends_the_stream(front, monkeypatch):
    monkeypatch.setattr(Choice, "text", property(lambda self: self.stream.text + "x" * len(front.mortal.origins)))
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("internal_error", 2)


def test_bodies_of_streams_under_way_have_room_of_their_own():
    bodies = Bodies(Limits(max_body_bytes=10, max_bodies=2))
    assert [bodies.keep(b"x" * 10) for _ in range(3)] == [True, True, False]
    bodies.release(b"x" * 10, was_kept=True)
    assert bodies.keep(b"x" * 10)


def test_a_client_cannot_give_the_origin(front):
    ask(
        front.port,
        "/v1/completions",
        {**COMPLETION, "max_tokens": 1},
        headers={"dray.origin": "x", "x-dray-origin": "x"},
    )
    assert not front.mortal.origins[-1].reached


class Halting(ScriptedBackend):
    """A backend whose generations come in rounds of other sizes each time."""

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        self.num_at_once = 3 + 2 * (len(self.generations) % 2)
        async for deltas in super().generate(generation):
            yield deltas


class Forgetful(ScriptedBackend):
    """A backend whose first sample ends well, and fails when it is written again."""

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        is_again, num_tokens = bool(self.generations), 0
        async for (delta,) in super().generate(generation):
            num_tokens += len(delta.token_ids)
            if not is_again or delta.index > 0 or num_tokens <= 4:
                yield [delta]
            elif delta.ending is not None:
                yield [Delta(0, (), ending=Ending("error", None, "memory ran out", 0))]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_a_sample_that_the_client_has_may_fail_when_it_is_written_again(path):
    codec = TextCodec.load(str(BUNDLED / "target"), chat_template=TEMPLATE)
    backend = Forgetful(codec, "one two three four five six", cuts=(2, 4))  # the end comes with tokens
    app = create_app(Models(Service(ServiceSettings(model="m"), codec, backend, ServingMetrics("m"))))
    install(app, EdgeSettings(keys=None), ServingMetrics("m"))
    mortal = Mortal(app)
    two = {"n": 2, "stream_options": {"include_usage": True}}
    said = {"/v1/completions": {"prompt": "a", **two}, "/v1/responses": {"input": "a"}}
    body = {"stream": True, "seed": 1, **said.get(path, {"messages": [{"role": "user", "content": "a"}], **two})}
    with served(Gate(EagerProxy(mortal), Limits())) as port:
        whole = told(events_of(ask(port, path, body)))
        codes = set()
        for lifetime in range(1, mortal.num_parts):
            backend.generations.clear()
            mortal.lifetimes[:], mortal.origins[:] = [lifetime], []
            broken = events_of(ask(port, path, body))
            assert len(mortal.origins) == 2
            last = broken[-1]
            error = last if last.get("type") == "error" else last.get("error")
            codes.add(error and error["code"])
            assert error or told(broken) == whole
        # Before the sample ended, and behind its end; but the last event of a response has the whole text once more.
        assert codes == {"generation_failed"} | ({None} if "n" in body else set())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_thoughts_and_calls_go_on_wherever_the_first_ingress_broke_off(path):
    call = '<tool_call>{"name": "find", "arguments": {"what": "a \\"b\\" c"}}</tool_call>'
    codec = TextCodec.load(str(BUNDLED / "target"), chat_template=TEMPLATE)
    backend = Halting(codec, f"Let me think.</think>Well, \u00e9\u20ac.\n{call}\n{call}")
    app = create_app(Models(Service(ServiceSettings(model="m"), codec, backend, ServingMetrics("m"))))
    install(app, EdgeSettings(keys=None), ServingMetrics("m"))
    mortal, function = Mortal(app), {"name": "find", "parameters": {"type": "object"}}
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    tool: dict[str, Any] = {"type": "function", "function": function}
    if "responses" in path:
        said, tool = {"input": "a"}, {"type": "function", **function}
    body = {**said, "tools": [tool], "stream": True, "chat_template_kwargs": {"enable_thinking": True}}
    named = {"x-request-id": "r"}  # from which the ids of calls follow
    with served(Gate(EagerProxy(mortal), Limits())) as port:
        whole = parts_of(events_of(ask(port, path, body, headers=named)))
        assert len(whole) >= 4, "thoughts, a message and two calls"
        for lifetime in range(1, mortal.num_parts):
            backend.generations.clear()
            mortal.lifetimes[:], mortal.origins[:] = [lifetime], []
            broken = events_of(ask(port, path, body, headers=named))
            assert len(mortal.origins) == 2
            assert parts_of(broken) == whole
            if "responses" in path:
                assert [event["sequence_number"] for event in broken] == list(range(len(broken)))


def parts_of(events: list[dict[str, Any]]) -> dict[Any, str]:
    """Return thoughts, content and calls that a stream tells, however they are cut into events."""
    found: dict[Any, str] = {}

    def add(key: Any, text: str) -> None:
        found[key] = found.get(key, "") + text

    for event in events:
        assert not event.get("error"), event
        if str(event.get("type")).endswith(".delta"):
            add((event["output_index"], event["type"]), event["delta"])
        for choice in event.get("choices", ()):
            delta = choice["delta"]
            for name in ("content", "reasoning"):
                if delta.get(name):
                    add(name, delta[name])
            for call in delta.get("tool_calls", ()):
                add((call["index"], "id"), call.get("id", ""))
                add((call["index"], "name"), call["function"].get("name", ""))
                add((call["index"], "arguments"), call["function"]["arguments"])
    return found
