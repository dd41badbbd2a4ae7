"""Metrics: what the endpoint counts, and what `/metrics` shows. `tests/actors/test_metrics.py` reads the documents."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from prometheus_client.samples import Sample
from starlette.types import Message

from actors.engine.loop import EngineStats
from actors.metric_table import HTTP_REQUESTS, SERVING_METRICS, Metric
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.metrics import RequestMeter, ServingMetrics, of_engines, of_process, page
from tests.endpoint.toy_app import BEARER, KEY, toy_app
from tests.endpoint.web import ask, samples_of, served

STATS = EngineStats(8, 5, 3, 2.0, 1.5, 0, num_positions=100, num_positions_used=50)
COUNTS: Any = (11, 9, {(3, 2): 2, (2, 1): 1, (0, 0): 1})  # of the prompt, of the output, of rounds by their drafts


def values(of: ServingMetrics, prefix: str = "dray_") -> dict[str, float]:
    """The samples without a histogram's buckets, by name and own labels."""
    return {
        " ".join([sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "model_name")]): (
            sample.value
        )
        for sample in samples_of(page(of.families()))
        if not sample.name.endswith("_bucket") and sample.name.startswith(prefix)
    }


class Clock:
    """The time, as a test says it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("endpoint.service.metrics.time.monotonic", clock)
    return clock


def test_a_request_is_followed_from_its_queue_to_its_last_token(clock):
    of = ServingMetrics("m")
    meter = RequestMeter(of)
    assert (values(of)["dray_num_requests_waiting"], values(of)["dray_num_requests_running"]) == (1, 0)
    clock.now += 2
    meter.slot_found()
    assert (values(of)["dray_num_requests_waiting"], values(of)["dray_num_requests_running"]) == (0, 1)
    clock.now += 1
    meter.tokens(1)
    clock.now += 3
    meter.tokens(3)
    clock.now += 1
    meter.finished("stop", *COUNTS)
    shown = values(of)
    assert (shown["dray_num_requests_waiting"], shown["dray_num_requests_running"]) == (0, 0)
    assert shown["dray_request_queue_time_seconds_sum"] == 2
    assert shown["dray_time_to_first_token_seconds_sum"] == 3
    assert (shown["dray_inter_token_latency_seconds_count"], shown["dray_inter_token_latency_seconds_sum"]) == (3, 3)
    assert shown["dray_e2e_request_latency_seconds_sum"] == 7
    assert shown["dray_requests_finished_total stop"] == 1


def test_samples_have_times_of_their_own(clock):
    of = ServingMetrics("m")
    meter = RequestMeter(of)
    for sample in (0, 1):
        clock.now += 1
        meter.tokens(2, sample)
    clock.now += 4
    meter.tokens(1, 1)
    shown = values(of)
    assert (shown["dray_time_to_first_token_seconds_count"], shown["dray_time_to_first_token_seconds_sum"]) == (1, 1)
    assert (shown["dray_inter_token_latency_seconds_count"], shown["dray_inter_token_latency_seconds_sum"]) == (1, 4)


def test_counts_have_the_fields_that_vllm_has(clock):
    of = ServingMetrics("m")
    for _ in range(2):
        RequestMeter(of).finished("length", *COUNTS, 4)
    assert {name: value for name, value in values(of).items() if "spec_decode" in name or "served" in name} == {
        "dray_served_cached_prompt_tokens_total": 8,
        "dray_served_prompt_tokens_total": 22,
        "dray_served_generation_tokens_total": 18,
        "dray_spec_decode_num_drafts_total": 6,
        "dray_spec_decode_num_draft_tokens_total": 16,
        "dray_spec_decode_num_accepted_tokens_total": 10,
        "dray_spec_decode_num_accepted_tokens_per_pos_total 0": 6,
        "dray_spec_decode_num_accepted_tokens_per_pos_total 1": 4,
    }


def test_a_request_that_never_ran_leaves_nothing_waiting(clock):
    of = ServingMetrics("m")
    RequestMeter(of).finished("rejected", 0, 0, {})
    shown = values(of)
    assert (shown["dray_num_requests_waiting"], shown["dray_num_requests_running"]) == (0, 0)
    assert shown["dray_requests_finished_total rejected"] == 1
    assert shown["dray_time_to_first_token_seconds_count"] == 0


def test_the_page_is_behind_the_key_and_counts_every_answer_by_its_route():
    with served(toy_app(keys=Keys([KEY]))) as port:
        assert ask(port, "/metrics").status == 401
        ask(port, "/v1/models/some/model", headers=BEARER)
        ask(port, "/v1/models/another", headers=BEARER)
        ask(port, "/v1/ask", {}, headers=BEARER)
        ask(port, "/v1/secret-path", headers=BEARER)
        ask(port, "/v1/secret-path", headers=BEARER, method="PROPFIND")
        ask(port, "/health", headers={"x-request-id": "?"})
        page = ask(port, "/metrics", headers=BEARER)
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"secret-path" not in page.body
    counted = {
        tuple(sample.labels[label] for label in ("method", "route", "status")): sample.value
        for sample in samples_of(page.body)
        if sample.name == "dray_http_requests_total" and sample.value
    }
    assert counted == {
        ("GET", "other", "401"): 1,
        ("GET", "/v1/models/{model:path}", "200"): 2,
        ("POST", "/v1/ask", "400"): 1,
        ("GET", "other", "404"): 1,
        ("other", "other", "404"): 1,
        ("GET", "other", "400"): 1,
    }


def full_page() -> list[Sample]:
    """Return the page of metrics that have all counted something."""
    of = ServingMetrics("m")
    meter = RequestMeter(of)
    meter.tokens(2)
    meter.tokens(2)
    meter.finished("stop", *COUNTS)
    of.add(HTTP_REQUESTS, 1, route="/", method="GET", status="200")
    return samples_of(page([*of.families(), *of_engines([STATS], "m")]))


def test_every_declared_series_is_on_the_page_under_each_of_its_names_and_no_other():
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    assert {sample.name: set(sample.labels) for sample in full_page()} == {
        f"{name}{suffix}": set(metric.tags) | ({"le"} if suffix == "_bucket" else set())
        for metric in SERVING_METRICS
        for name in (metric.name, *metric.vllm)
        for suffix in suffixes[metric.kind]
    }


def test_what_vllm_counts_too_has_its_names_and_the_same_values(clock):
    of = ServingMetrics("m")
    for reason in ("stop", "cancelled", "rejected", "timeout", "error"):
        RequestMeter(of).finished(reason, *COUNTS, 4)
    ours, theirs = values(of), values(of, "vllm:")
    assert {name: value for name, value in theirs.items() if "success" in name} == {
        "vllm:request_success_total stop": 1,
        "vllm:request_success_total abort": 1,
        "vllm:request_success_total error": 1,
        "vllm:request_success_total length": 0,
    }, "a client that left is no error, and what vLLM has no word for is left out"
    assert theirs["vllm:prefix_cache_queries_total"] == theirs["vllm:prompt_tokens_total"] == 55
    assert theirs["vllm:prefix_cache_hits_total"] == 20
    drafted = "spec_decode_num_draft_tokens_total"
    assert theirs[f"vllm:{drafted}"] == ours[f"dray_{drafted}"] == 40
    first = "time_to_first_token_seconds_count"
    assert theirs[f"vllm:{first}"] == ours[f"dray_{first}"] == 0


def test_the_page_keeps_processes_apart_and_adds_engines_up():
    first, second = ServingMetrics("m"), ServingMetrics("m")
    RequestMeter(first).finished("stop", *COUNTS)
    for _ in range(2):
        RequestMeter(second).finished("stop", *COUNTS)
    idle = replace(STATS, num_positions=300, num_positions_used=0)
    families = [*of_process(first.families(), "a"), *of_process(second.families(), "b")]
    shown = samples_of(page([*families, *of_engines([STATS, idle], "m")]))
    for name in ("dray_spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"):
        assert {s.labels["process"]: s.value for s in shown if s.name == name} == {"a": 3, "b": 6}
    for name in ("dray_kv_cache_usage", "vllm:kv_cache_usage_perc"):
        assert [(s.labels, s.value) for s in shown if s.name == name] == [({"model_name": "m"}, 0.125)]
    assert of_engines([], "m") == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_client_that_leaves_is_counted_apart_from_answers_and_errors(is_begun):
    app = FastAPI()

    @app.get("/never")
    async def never() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"first"
            await asyncio.Event().wait()

        if not is_begun:
            await asyncio.Event().wait()
        return StreamingResponse(pieces())

    metrics = ServingMetrics("m")
    install(app, EdgeSettings(keys=None), metrics)
    messages: list[Message] = []
    has_begun, left = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        if not messages:
            messages.append({})
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            has_begun.set()

    async def scenario() -> None:
        scope = {"type": "http", "method": "GET", "path": "/never", "headers": [], "query_string": b"", "app": app}
        answering = asyncio.create_task(app(scope, receive, send))
        if is_begun:
            await has_begun.wait()
            left.set()
            await answering
        else:  # as Serve ends the application's part of a request
            while not messages:
                await asyncio.sleep(0)
            answering.cancel()
            await asyncio.wait([answering])

    asyncio.run(scenario())
    counted = {name: value for name, value in values(metrics).items() if name.startswith("dray_http_requests_total")}
    assert {name for name, value in counted.items() if value} == {"dray_http_requests_total GET /never 499"}


class Published:
    """Ray's side of a metric, which keeps what it was given."""

    def __init__(self) -> None:
        self.told: list[tuple[float, dict[str, str]]] = []

    def inc(self, amount: float, tags: dict[str, str]) -> None:
        assert amount > 0, "Ray raises"
        self.told.append((amount, tags))

    def observe(self, value: float) -> None:
        self.told.append((value, {}))

    def set(self, value: float) -> None:
        self.told = [(value, {})]


def test_ray_gets_the_same_counts_as_the_page(monkeypatch, clock):
    made: dict[str, Published] = {}

    def to_ray(metric: Metric, **common_tag: str) -> Published:
        assert common_tag == {"model_name": "m"}
        return made.setdefault(metric.name, Published())

    beats: list[Callable[[], None]] = []
    monkeypatch.setattr(Metric, "to_ray", to_ray)
    monkeypatch.setattr(
        "endpoint.service.metrics.Heartbeat", lambda beat: beats.append(beat) or type("No", (), {"start": int})()
    )
    meter = RequestMeter(ServingMetrics("m", to_ray=True))
    meter.tokens(1)
    for beat in beats:
        beat()
    assert made["dray_num_requests_running"].told == [(1, {})]
    meter.finished("stop", *COUNTS)
    for beat in beats:
        beat()
    assert made["dray_num_requests_running"].told == [(0, {})]
    assert made["dray_spec_decode_num_accepted_tokens_per_pos"].told == [(3, {"position": "0"}), (2, {"position": "1"})]
    assert made["dray_requests_finished"].told == [(1, {"finished_reason": "stop"})]
    assert made["dray_time_to_first_token_seconds"].told == [(0, {})]
