"""ServingMetrics: what one process of the endpoint has counted, for the page `/metrics` and for Ray.

Ray's agent on each node shows the same metrics under `ray_dray_...` with the process as a label, which is where the
processes of an endpoint can be added up. `actors/metric_table.py` declares them.
"""

from __future__ import annotations

import threading

import prometheus_client as prometheus

from actors.heartbeat import Heartbeat
from actors.metric_table import (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    SERVED_ACCEPTED_BY_POSITION,
    SERVED_ACCEPTED_TOKENS,
    SERVED_DRAFT_TOKENS,
    SERVED_DRAFTS,
    SERVED_GENERATION_TOKENS,
    SERVED_PROMPT_TOKENS,
    SERVING_METRICS,
    Metric,
)
from pipeline.counts import Counts

_Shown = prometheus.Counter | prometheus.Gauge | prometheus.Histogram


class ServingMetrics:
    """The counts of one process of the endpoint. Any thread may call its methods."""

    def __init__(self, model_name: str, *, to_ray: bool = False) -> None:
        """Count under the tag `model_name`. With `to_ray`, in a process of Ray, Ray gets the same counts."""
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model_name = model_name
        self._registry = prometheus.CollectorRegistry()
        self._shown = {metric.name: _to_prometheus(metric, self._registry) for metric in SERVING_METRICS}
        self._of_ray = (
            {metric.name: metric.to_ray(model_name=model_name) for metric in SERVING_METRICS} if to_ray else {}
        )
        self._gauges, self._moving = {REQUESTS_RUNNING.name: 0, REQUESTS_WAITING.name: 0}, threading.Lock()
        for metric in (REQUESTS_RUNNING, REQUESTS_WAITING):
            self.move(metric, 0)
        for metric in SERVING_METRICS:
            if metric.kind != "gauge" and len(metric.tags) == 1:
                self._shown[metric.name].labels(model_name)  # shows it from the start, at zero
        if to_ray:
            Heartbeat(self._repeat_gauges).start()  # Ray drops a gauge that is not set again

    def page(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return prometheus.generate_latest(self._registry)

    def add(self, metric: Metric, amount: float, **tags: str) -> None:
        """Add to a counter."""
        if not amount:
            return
        counter = self._shown[metric.name]
        assert isinstance(counter, prometheus.Counter)
        counter.labels(self._model_name, *(tags[tag] for tag in metric.tags[1:])).inc(amount)
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
        """Add the counts of some samples, and the number of rounds in which something was drafted."""
        self.add(SERVED_PROMPT_TOKENS, counts.num_prompt_tokens)
        self.add(SERVED_GENERATION_TOKENS, counts.num_output_tokens)
        self.add(SERVED_DRAFTS, num_drafts)
        self.add(SERVED_DRAFT_TOKENS, counts.num_draft_tokens)
        self.add(SERVED_ACCEPTED_TOKENS, counts.num_accepted_tokens)
        for position, num_accepted in enumerate(counts.accepted_per_position):
            self.add(SERVED_ACCEPTED_BY_POSITION, num_accepted, position=str(position))

    def _repeat_gauges(self) -> None:
        for name, value in self._gauges.items():
            self._of_ray[name].set(value)


def _to_prometheus(metric: Metric, registry: prometheus.CollectorRegistry) -> _Shown:
    name, description, tags = metric.name, metric.description, metric.tags
    if metric.kind == "counter":
        return prometheus.Counter(name, description, tags, registry=registry)
    if metric.kind == "gauge":
        return prometheus.Gauge(name, description, tags, registry=registry)
    return prometheus.Histogram(name, description, tags, buckets=metric.boundaries, registry=registry)
