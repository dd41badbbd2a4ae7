"""The metrics of the endpoint, all declared here and explained in docs/serving.md, and the page `/metrics` with them.

The page shows what one process of the endpoint has counted. With `to_ray` the process hands the same to Ray as well,
whose agent on each node shows it under `ray_dray_...` with the process as a label: that is where several processes add up.
"""

from __future__ import annotations

import time
from typing import Literal

import prometheus_client as prometheus
from fastapi import FastAPI
from fastapi.responses import Response
from ray.util import metrics as ray_metrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.metrics import Heartbeat, Metric
from pipeline.counts import Counts

FinishReason = Literal["stop", "length", "cancelled", "rejected", "timeout", "error"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

HTTP_REQUESTS = Metric(
    "dray_http_requests", "counter", "requests", "Requests answered, refused ones too.", ("route", "method", "status")
)
RUNNING = Metric("dray_num_requests_running", "gauge", "requests", "Requests that are being written.")
WAITING = Metric("dray_num_requests_waiting", "gauge", "requests", "Requests that no slot has been found for yet.")
FINISHED = Metric(
    "dray_requests_finished",
    "counter",
    "requests",
    "Requests to generate, by how they ended: stop, length, cancelled (the client left), rejected (the queue was full), "
    "timeout or error.",
    ("finished_reason",),
)
QUEUE_SECONDS = Metric(
    "dray_request_queue_time_seconds", "histogram", "seconds", "From a request to its slot.", boundaries=_SECONDS
)
FIRST_TOKEN_SECONDS = Metric(
    "dray_time_to_first_token_seconds",
    "histogram",
    "seconds",
    "From a request to its first tokens.",
    boundaries=_SECONDS,
)
BETWEEN_TOKENS_SECONDS = Metric(
    "dray_inter_token_latency_seconds",
    "histogram",
    "seconds",
    "Between tokens of a sample; those that come in one round share the time since the last round.",
    boundaries=_SECONDS,
)
REQUEST_SECONDS = Metric(
    "dray_e2e_request_latency_seconds", "histogram", "seconds", "From a request to its end.", boundaries=_SECONDS
)
PROMPT_TOKENS = Metric(
    "dray_served_prompt_tokens", "counter", "tokens", "Prompt tokens, once a prompt whatever its samples."
)
GENERATION_TOKENS = Metric("dray_served_generation_tokens", "counter", "tokens", "Tokens written.")
NUM_DRAFTS = Metric(
    "dray_spec_decode_num_drafts", "counter", "row rounds", "Rounds, counted once for each sample in them."
)
NUM_DRAFT_TOKENS = Metric("dray_spec_decode_num_draft_tokens", "counter", "tokens", "Tokens drafted.")
NUM_ACCEPTED_TOKENS = Metric("dray_spec_decode_num_accepted_tokens", "counter", "tokens", "Drafted tokens that stood.")
ACCEPTED_PER_POS = Metric(
    "dray_spec_decode_num_accepted_tokens_per_pos",
    "counter",
    "tokens",
    "The same by position in the draft, from 0.",
    ("position",),
)

SERVING_METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS,
    RUNNING,
    WAITING,
    FINISHED,
    QUEUE_SECONDS,
    FIRST_TOKEN_SECONDS,
    BETWEEN_TOKENS_SECONDS,
    REQUEST_SECONDS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    NUM_DRAFTS,
    NUM_DRAFT_TOKENS,
    NUM_ACCEPTED_TOKENS,
    ACCEPTED_PER_POS,
)

_Shown = prometheus.Counter | prometheus.Gauge | prometheus.Histogram


class ServingMetrics:
    """What one process of the endpoint counts. Any thread may call its methods."""

    def __init__(self, model_name: str, *, to_ray: bool = False) -> None:
        """`model_name` is the tag that all have. With `to_ray`, in a process of Ray, Ray gets everything as well."""
        prometheus.disable_created_metrics()
        self._model_name = model_name
        self._registry = prometheus.CollectorRegistry()
        self._shown = {metric.name: _to_prometheus(metric, self._registry) for metric in SERVING_METRICS}
        self._of_ray = {metric.name: _to_ray(metric, model_name) for metric in SERVING_METRICS} if to_ray else {}
        self._gauges = {RUNNING.name: 0, WAITING.name: 0}
        for metric in (RUNNING, WAITING):
            self.move(metric, 0)
        for metric in SERVING_METRICS:
            if metric.kind != "gauge" and not metric.tags:
                self._shown[metric.name].labels(model_name)  # there from the start, at zero
        if to_ray:
            Heartbeat(self._repeat_gauges).start()  # Ray drops a gauge that is not set again

    def page(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return prometheus.generate_latest(self._registry)

    def request_started(self) -> RequestMeter:
        """The meter of a request that waits from now on."""
        return RequestMeter(self)

    def add(self, metric: Metric, amount: float, **tags: str) -> None:
        """Add to a counter."""
        if not amount:
            return
        counter = self._shown[metric.name]
        assert isinstance(counter, prometheus.Counter)
        counter.labels(self._model_name, *(tags[tag] for tag in metric.tags)).inc(amount)
        if self._of_ray:
            self._of_ray[metric.name].inc(amount, tags)

    def observe(self, metric: Metric, seconds: float) -> None:
        """Count a value in a histogram."""
        histogram = self._shown[metric.name]
        assert isinstance(histogram, prometheus.Histogram)
        histogram.labels(self._model_name).observe(seconds)
        if self._of_ray:
            self._of_ray[metric.name].observe(seconds)

    def move(self, metric: Metric, by: int) -> None:
        """Move a gauge."""
        gauge = self._shown[metric.name]
        assert isinstance(gauge, prometheus.Gauge)
        gauge.labels(self._model_name).inc(by)
        self._gauges[metric.name] += by

    def add_counts(self, counts: Counts) -> None:
        """Add what some samples, or some rounds of them, came to."""
        self.add(PROMPT_TOKENS, counts.num_prompt_tokens)
        self.add(GENERATION_TOKENS, counts.num_output_tokens)
        self.add(NUM_DRAFTS, counts.num_rounds)
        self.add(NUM_DRAFT_TOKENS, counts.num_draft_tokens)
        self.add(NUM_ACCEPTED_TOKENS, counts.num_accepted_tokens)
        for position, num_accepted in enumerate(counts.accepted_per_position):
            self.add(ACCEPTED_PER_POS, num_accepted, position=str(position))

    def _repeat_gauges(self) -> None:
        for name, value in self._gauges.items():
            self._of_ray[name].set(value)


class RequestMeter:
    """Follows one request to generate: waiting, running, finished. Its calls may be left out, but not the last one."""

    def __init__(self, metrics: ServingMetrics) -> None:
        """The request begins to wait now."""
        self._metrics = metrics
        self._started = time.monotonic()
        self._is_running = self._has_ended = False
        self._last_tokens: dict[int, float] = {}  # when each sample's last ones came
        metrics.move(WAITING, 1)

    def slot_found(self) -> None:
        """The first of its samples has a slot."""
        if self._is_running or self._has_ended:
            return
        self._is_running = True
        self._metrics.observe(QUEUE_SECONDS, time.monotonic() - self._started)
        self._metrics.move(WAITING, -1)
        self._metrics.move(RUNNING, 1)

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """So many tokens of a sample have come, in one round."""
        if not num_tokens or self._has_ended:
            return
        self.slot_found()
        now = time.monotonic()
        if not self._last_tokens:
            self._metrics.observe(FIRST_TOKEN_SECONDS, now - self._started)
        if sample in self._last_tokens:
            for _ in range(num_tokens):
                self._metrics.observe(BETWEEN_TOKENS_SECONDS, (now - self._last_tokens[sample]) / num_tokens)
        self._last_tokens[sample] = now

    def finished(self, reason: FinishReason, counts: Counts | None = None) -> None:
        """It is over, with these counts in all; a second call changes nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        self._metrics.move(RUNNING if self._is_running else WAITING, -1)
        self._metrics.observe(REQUEST_SECONDS, time.monotonic() - self._started)
        self._metrics.add(FINISHED, 1, finished_reason=reason)
        if counts is not None:
            self._metrics.add_counts(counts)


class RequestCounts:
    """Counts every answer by route and status; a path that is no route counts as `other`, whatever it says."""

    def __init__(self, app: ASGIApp, metrics: ServingMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on and count one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = "none"  # the client left before there was an answer

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.add(HTTP_REQUESTS, 1, route=route, method=method, status=status)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def install_metrics(app: FastAPI, metrics: ServingMetrics) -> None:
    """Add `/metrics`."""

    async def metrics_page() -> Response:
        return Response(metrics.page(), media_type=prometheus.CONTENT_TYPE_PLAIN_0_0_4)

    app.add_api_route("/metrics", metrics_page, methods=["GET"], include_in_schema=False)


def _to_prometheus(metric: Metric, registry: prometheus.CollectorRegistry) -> _Shown:
    tags = ("model_name", *metric.tags)
    if metric.kind == "counter":
        return prometheus.Counter(metric.name, metric.description, tags, registry=registry)
    if metric.kind == "gauge":
        return prometheus.Gauge(metric.name, metric.description, tags, registry=registry)
    return prometheus.Histogram(metric.name, metric.description, tags, buckets=metric.boundaries, registry=registry)


def _to_ray(metric: Metric, model_name: str) -> ray_metrics.Metric:
    tags = ("model_name", *metric.tags)
    default = {"model_name": model_name}
    if metric.kind == "counter":
        return ray_metrics.Counter(metric.name, metric.description, tags).set_default_tags(default)
    if metric.kind == "gauge":
        return ray_metrics.Gauge(metric.name, metric.description, tags).set_default_tags(default)
    return ray_metrics.Histogram(metric.name, metric.description, list(metric.boundaries), tags).set_default_tags(
        default
    )
