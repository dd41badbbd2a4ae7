"""The metrics of the endpoint, all declared here and explained in docs/serving.md.

They are what one process of the endpoint has counted. With `to_ray` the process hands the same to Ray as well, whose
agent on each node shows it under `ray_dray_...` with the process as a label: that is where several processes add up.
"""

from __future__ import annotations

import threading
from typing import Any

import prometheus_client as prometheus
from ray.util import metrics as ray_metrics

from actors.metrics import Heartbeat, Metric
from pipeline.counts import Counts

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
    "Requests to generate, by how they ended: stop, length, cancelled (the client left), rejected (the queue was "
    "full), timeout or error.",
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
    "Between tokens of a sample; those that come together share the time since the last ones.",
    boundaries=_SECONDS,
)
REQUEST_SECONDS = Metric(
    "dray_e2e_request_latency_seconds", "histogram", "seconds", "From a request to its end.", boundaries=_SECONDS
)
PROMPT_TOKENS = Metric(
    "dray_served_prompt_tokens",
    "counter",
    "tokens",
    "Prompt tokens, once a prompt whatever its samples; none of a prompt that nothing was written to (rejected, ended "
    "before its first token, or only scored).",
)
GENERATION_TOKENS = Metric(
    "dray_served_generation_tokens", "counter", "tokens", "Tokens written, also for a client that left before the end."
)
NUM_DRAFTS = Metric(
    "dray_spec_decode_num_drafts", "counter", "drafts", "Drafts: one for each sample and round in which one was made."
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
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model_name = model_name
        self._registry = prometheus.CollectorRegistry()
        self._shown = {metric.name: _to_prometheus(metric, self._registry) for metric in SERVING_METRICS}
        self._of_ray = {metric.name: _to_ray(metric, model_name) for metric in SERVING_METRICS} if to_ray else {}
        self._gauges, self._moving = {RUNNING.name: 0, WAITING.name: 0}, threading.Lock()
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
        with self._moving:
            self._gauges[metric.name] += by
            gauge.labels(self._model_name).set(self._gauges[metric.name])

    def add_counts(self, counts: Counts, num_drafts: int) -> None:
        """Add what some samples came to, and in how many of their rounds something was drafted."""
        self.add(PROMPT_TOKENS, counts.num_prompt_tokens)
        self.add(GENERATION_TOKENS, counts.num_output_tokens)
        self.add(NUM_DRAFTS, num_drafts)
        self.add(NUM_DRAFT_TOKENS, counts.num_draft_tokens)
        self.add(NUM_ACCEPTED_TOKENS, counts.num_accepted_tokens)
        for position, num_accepted in enumerate(counts.accepted_per_position):
            self.add(ACCEPTED_PER_POS, num_accepted, position=str(position))

    def _repeat_gauges(self) -> None:
        for name, value in self._gauges.items():
            self._of_ray[name].set(value)


def _to_prometheus(metric: Metric, registry: prometheus.CollectorRegistry) -> _Shown:
    tags = ("model_name", *metric.tags)
    if metric.kind == "counter":
        return prometheus.Counter(metric.name, metric.description, tags, registry=registry)
    if metric.kind == "gauge":
        return prometheus.Gauge(metric.name, metric.description, tags, registry=registry)
    return prometheus.Histogram(metric.name, metric.description, tags, buckets=metric.boundaries, registry=registry)


def _to_ray(metric: Metric, model_name: str) -> Any:
    tags = ("model_name", *metric.tags)
    of_ray: Any
    if metric.kind == "counter":
        of_ray = ray_metrics.Counter(metric.name, metric.description, tags)
    elif metric.kind == "gauge":
        of_ray = ray_metrics.Gauge(metric.name, metric.description, tags)
    else:
        of_ray = ray_metrics.Histogram(metric.name, metric.description, list(metric.boundaries), tags)
    return of_ray.set_default_tags({"model_name": model_name})
