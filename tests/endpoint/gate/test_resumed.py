"""Streams whose ingress is lost in the middle: another one goes on, and the client sees one stream without a seam."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from actors.engine.deadline import Deadline
from actors.engine.requests import Generation
from actors.engines.loading import load_codec
from actors.workers.replica import Replica
from endpoint.app import create_app
from endpoint.edge.install import EdgeSettings, install
from endpoint.gate.capacity import Capacity
from endpoint.gate.gate import Gate
from endpoint.gate.held_body import HeldBody
from endpoint.gate.journal import Journal, RetoldError, Room
from endpoint.http.bodies import Bodies
from endpoint.http.errors import ApiError
from endpoint.http.limits import Limits
from endpoint.http.retelling import TOLD, Origin
from endpoint.service.backend import Replicas
from endpoint.service.metrics import ServingMetrics
from endpoint.service.models import Models
from endpoint.service.service import Service, ServiceSettings
from tests.endpoint.gate.eager_proxy import EagerProxy
from tests.endpoint.gate.mortal import Handle, Items, Mortal
from tests.endpoint.in_process import MODEL, Running, settings_of
from tests.endpoint.web import Answer, ask, served

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
    "chat": ("/v1/chat/completions", {**CHAT, "ignore_eos": True, "return_token_ids": True}),
    "response": ("/v1/responses", {"model": MODEL, "input": PROMPT, "max_output_tokens": LENGTH, "stream": True}),
}


@dataclass(frozen=True)
class Front(Running):
    """The gate before such processes."""

    mortal: Mortal
    replicas: Replicas
    handle: Handle
    service: Service

    def answer(self, what: str, *lifetimes: int, **fields: Any) -> Answer:
        path, body = ASKED[what]
        self.mortal.lifetimes[:], self.mortal.origins[:] = lifetimes, []
        return ask(self.port, path, {**body, **fields})


@pytest.fixture(scope="module")
def front(text_pair: tuple[str, str]) -> Iterator[Front]:
    settings = settings_of(text_pair)
    handle, metrics = Handle(Replica(settings)), ServingMetrics(MODEL)
    replicas = Replicas(handle, is_repeatable=True)
    service = Service(ServiceSettings(model=MODEL), load_codec(settings), replicas, metrics)
    app = create_app(Models(service))
    install(app, EdgeSettings(keys=None), metrics)
    mortal = Mortal(app)
    with served(Gate(EagerProxy(mortal), Limits())) as port:
        yield Front(port, settings, mortal, replicas, handle, service)


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
    if said["usage"] is not None:
        said["usage"].pop("prompt_tokens_details")  # how much of the prompt was in a cache
    return said


def test_a_request_that_is_asked_for_again_has_the_rest_of_its_time(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front.service, "settings", replace(front.service.settings, request_timeout_s=600.0))
    left, prepare = list[float](), Service.prepare

    async def note(self: Service, request: Any, call: Any) -> Any:
        left.append(call.deadline.ends_at - time.monotonic())
        return await prepare(self, request, replace(call, deadline=Deadline()))

    monkeypatch.setattr(Service, "prepare", note)
    monkeypatch.setattr(Journal, "used_s", property(lambda self: 590.0 if self.num_tried else 0.0))
    told(events_of(front.answer("completion", 3, seed=7)))
    assert [round(each, -1) for each in left] == [600, 10]


@pytest.mark.parametrize("lifetime", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("what", ASKED)
def test_a_stream_goes_on_with_another_ingress_where_the_first_one_broke_off(
    front: Front, what: str, lifetime: int
) -> None:
    whole, broken = (events_of(front.answer(what, *lives, seed=7)) for lives in ((), (lifetime,)))
    assert len(front.mortal.origins) == 2, "none was lost"
    assert told(broken) == told(whole)
    assert len({event.get("id") for event in broken}) == 1
    assert len({event.get("created") for event in broken}) == 1
    if what == "response":
        assert [event["sequence_number"] for event in broken] == list(range(len(broken)))
        (ended,) = [
            event["response"] for event in broken if event["type"] in ("response.completed", "response.incomplete")
        ]
        assert ended["output"][0]["content"][0]["text"] == told(whole)["texts"][0]


def test_what_the_lost_ingress_had_asked_for_is_written_no_longer(front: Front) -> None:
    recalled, recall = list[int](), front.handle.replica.recall
    front.handle.replica.recall = lambda *asked: recalled.append(recall(*asked))  # type: ignore[method-assign]
    try:
        told(events_of(front.answer("completion", 3, seed=7)))
        told(events_of(front.answer("completion", seed=7)))
    finally:
        front.handle.replica.recall = recall  # type: ignore[method-assign]
    assert recalled == [1], "once, by the second ingress of the first request"


@pytest.mark.parametrize("lifetime", [1, 4])
def test_a_seed_that_the_request_does_not_give_is_the_same_in_both_ingresses(front: Front, lifetime: int) -> None:
    said = told(events_of(front.answer("completion", lifetime)))
    seeds = {seed for _, _, seed in said["ends"]}
    assert len(seeds) == 1
    asked = {name: COMPLETION[name] for name in ("prompt", "max_tokens", "ignore_eos", "n")}
    texts = [row["text"] for row in front.offline(**asked, seed=seeds.pop())]
    assert [said["texts"][0], said["texts"][1]] == texts
    assert told(events_of(front.answer("completion")))["ends"] != said["ends"], "another request has another seed"


@pytest.mark.parametrize("what", ["completion", "response"])
def test_a_stream_of_which_only_the_end_of_the_connection_is_missing_is_over(front: Front, what: str) -> None:
    whole = front.answer(what, seed=3).body
    num_events = whole.count(b"\n\n")
    answer = front.answer(what, num_events, seed=3)
    assert len(front.mortal.origins) == 1, "another one was asked for nothing"
    assert told(events_of(answer)) == told(events_of(front.answer(what, seed=3)))


def test_a_stream_that_two_ingresses_were_lost_over_ends_with_an_error(front: Front) -> None:
    answer = front.answer("completion", 3, 5, seed=7)
    *_, last = events_of(answer)
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 2)
    assert "It is not tried again." in last["error"]["message"]


def test_an_engine_that_writes_something_else_adds_nothing_to_what_was_sent(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Handle.remote

    def otherwise(self: Handle, generation: Generation) -> Items:
        is_second = len(front.mortal.origins) == 2
        return generate(self, replace(generation, seeds=(8,)) if is_second else generation)

    monkeypatch.setattr(Handle, "remote", otherwise)
    *before, last = events_of(front.answer("completion", 3, seed=7, n=1, temperature=1.0))
    assert last["error"]["code"] == "internal_error"
    monkeypatch.undo()
    whole = told(events_of(front.answer("completion", seed=7, n=1, temperature=1.0)))
    assert whole["texts"][0].startswith(told(before)["texts"][0])


def test_a_stream_that_another_engine_cannot_continue_ends_with_an_error(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front.replicas, "is_repeatable", False)
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 1)


def test_a_stream_for_which_the_gate_has_no_room_ends_with_an_error(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "take", lambda self, num_bytes: False)
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 1)


def test_an_ingress_that_refuses_to_go_on_leaves_an_error(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Service.prepare

    async def refuse(self: Service, request: Any, call: Any) -> Any:
        if call.origin.told:
            raise ApiError(400, "This one does not want to.")
        return await prepare(self, request, call)

    monkeypatch.setattr(Service, "prepare", refuse)
    *_, last = events_of(front.answer("chat", 3, seed=7))
    assert (last["error"]["code"], len(front.mortal.origins)) == ("ingress_lost", 2)


def test_an_ingress_that_tells_a_stream_in_other_words_is_logged_and_the_stream_ends(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Origin, "created", property(lambda self: self.attempt))
    *_, last = events_of(front.answer("completion", 3, seed=7))
    assert last["error"]["code"] == "ingress_lost"
    assert "It is not tried again." in last["error"]["message"]
    (record,) = [record for record in caplog.records if record.name == "endpoint.gate.gate"]
    assert "stream told in other words" in record.getMessage()


def test_a_body_is_kept_no_longer_than_the_journal_counts_it() -> None:
    room = Room(1000)
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": None}
    body = HeldBody(scope, None, Bodies(Limits()), Capacity().claim(scope, "/"), Journal(room))  # type: ignore[arg-type]
    body._body = b"x" * 900
    body.handle({"type": TOLD, "deltas": b"y" * 50})
    body.keep_in_journal()
    body.handle({"type": TOLD, "deltas": b"y" * 100})
    assert room.take(1000)
    assert body._body is None


def test_a_client_cannot_give_the_origin(front: Front) -> None:
    ask(
        front.port,
        "/v1/completions",
        {**COMPLETION, "max_tokens": 1},
        headers={"dray.origin": "x", "x-dray-origin": "x"},
    )
    assert not front.mortal.origins[-1].told


def test_a_journal_gives_its_room_back_and_knows_other_words() -> None:
    room = Room(100)
    journal = Journal(room)
    journal.tell({"deltas": b"x" * 40})
    assert journal.can_resume
    assert journal.unsent(b"data: 1\n\n", is_last=False) == b"data: 1\n\n"
    journal.resume()
    assert journal.origin.told == (b"x" * 40,)
    with pytest.raises(RetoldError):
        journal.unsent(b"data: 2\n\n", is_last=False)
    journal.resume()
    assert journal.unsent(b"data: ", is_last=False) == b""
    with pytest.raises(RetoldError):
        journal.unsent(b"", is_last=True)
    assert not room.take(61)
    journal.close()
    assert room.take(100)
    full = Journal(room)
    full.tell({"deltas": b"x"})
    assert not full.can_resume
