"""ServingMetrics: what one process of the endpoint has counted, for the page `/metrics` and for Ray.

The page shows the counts of all processes. Ray's agent on each node shows the same metrics under `ray_dray_...` with
the process as a label. `actors/metric_table.py` declares them. Dashboards, load tools and gateways that were made for
vLLM look for its names, so the page has what means the same under these, too (`Metric.vllm`).
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import prometheus_client as prometheus
from prometheus_client.samples import Sample

from actors import metric_table as table
from actors.engine.loop import EngineStats
from actors.heartbeat import Heartbeat

Family = prometheus.Metric  # the samples of one metric
_VLLM_NAMES = {metric.name: metric.vllm for metric in table.SERVING_METRICS}
_VLLM_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # the others it has not
FinishReason = Literal["stop", "length", "cancelled", "rejected", "timeout", "error"]
_KINDS: Mapping[str, Any] = {
    "counter": prometheus.Counter,
    "gauge": prometheus.Gauge,
    "histogram": prometheus.Histogram,
}


def page(families: Iterable[Family]) -> bytes:
    """Return the page in Prometheus's text format; families of the same name are those of several processes."""
    together: dict[str, Family] = {}
    for family in families:
        for named in (family, *_under_vllm_names(family)):
            known = together.setdefault(named.name, _named(named, named.name, ()))
            known.samples += named.samples
    return prometheus.generate_latest(SimpleNamespace(collect=together.values))


def of_process(families: Iterable[Family], process: str) -> list[Family]:
    """Return the families with a label that names their process, so that each of their series has one source."""
    return [
        _named(f, f.name, (s._replace(labels={**s.labels, "process": process}) for s in f.samples)) for f in families
    ]


def of_engines(stats: Sequence[EngineStats], model_name: str) -> list[Family]:
    """Return what is asked of the engines when the page is; nothing if none has answered."""
    num_positions = sum(each.num_positions for each in stats)
    if not num_positions:
        return []
    metric = table.KV_CACHE_USAGE
    family = Family(metric.name, metric.description, metric.kind)
    used = sum(each.num_positions_used for each in stats) / num_positions
    family.add_sample(metric.name, {"model_name": model_name}, used)
    return [family]


def _under_vllm_names(family: Family) -> Iterator[Family]:
    known = [sample for sample in family.samples if sample.labels.get("finished_reason", "stop") in _VLLM_REASONS]
    for name in _VLLM_NAMES.get(family.name, ()):
        yield _named(family, name, (_renamed(sample, family.name, name) for sample in known))


def _renamed(sample: Sample, name: str, new_name: str) -> Sample:
    labels: dict[str, Any] = dict(sample.labels)
    if "finished_reason" in labels:
        labels["finished_reason"] = _VLLM_REASONS[labels["finished_reason"]]
    return sample._replace(name=new_name + sample.name.removeprefix(name), labels=labels)


def _named(family: Family, name: str, samples: Iterable[Sample]) -> Family:
    """Return a family of this name with other samples."""
    new = Family(name, family.documentation, family.type)
    new.samples = list(samples)
    return new


class ServingMetrics:
    """The counts of one process of the endpoint, for its event loop."""

    def __init__(self, model_name: str, *, to_ray: bool = False) -> None:
        """Count under the tag `model_name`. With `to_ray`, in a process of Ray, Ray gets the same counts."""
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model_name = model_name
        self._registry = prometheus.CollectorRegistry()
        self._shown: dict[str, Any] = {}
        counted = [metric for metric in table.SERVING_METRICS if not metric.is_asked_for]
        self._of_ray = {metric.name: metric.to_ray(model_name=model_name) for metric in counted if to_ray}
        for metric in counted:
            buckets = {"buckets": metric.boundaries} if metric.kind == "histogram" else {}
            shown = _KINDS[metric.kind](
                metric.name, metric.description, metric.tags, registry=self._registry, **buckets
            )
            if len(metric.tags) == 1:
                shown.labels(model_name)  # shows it from the start, at zero
            for tags in metric.first_series():
                shown.labels(model_name=model_name, **tags)
            self._shown[metric.name] = shown
        self._gauges = {table.REQUESTS_RUNNING.name: 0, table.REQUESTS_WAITING.name: 0}
        if to_ray:
            Heartbeat(self._repeat_gauges).start()  # Ray drops a gauge that is not set again

    def families(self) -> list[Family]:
        """Return all that this process has counted, for the page."""
        return list(self._registry.collect())

    def add(self, metric: table.Metric, amount: float, **tags: str) -> None:
        """Add to a counter."""
        if not amount:
            return
        self._shown[metric.name].labels(model_name=self._model_name, **tags).inc(amount)
        if self._of_ray:
            self._of_ray[metric.name].inc(amount, tags)

    def observe(self, metric: table.Metric, seconds: float) -> None:
        """Count a value in a histogram."""
        self._shown[metric.name].labels(self._model_name).observe(seconds)
        if self._of_ray:
            self._of_ray[metric.name].observe(seconds)

    def move(self, metric: table.Metric, by: int) -> None:
        """Move a gauge."""
        self._gauges[metric.name] += by
        self._shown[metric.name].labels(self._model_name).set(self._gauges[metric.name])

    def _repeat_gauges(self) -> None:
        for name, value in self._gauges.items():
            self._of_ray[name].set(value)


class RequestMeter:
    """The times and counts of one request to generate: waiting, running, finished. Every request must be finished."""

    def __init__(self, metrics: ServingMetrics) -> None:
        self._metrics, self._started, self._is_running = metrics, time.monotonic(), False
        self._last_tokens: dict[int, float] = {}  # when the newest tokens of each sample came
        metrics.move(table.REQUESTS_WAITING, 1)

    def slot_found(self) -> None:
        """Begin to run, if the request has not: the first of its samples has a slot."""
        if self._is_running:
            return
        self._is_running = True
        self._metrics.observe(table.QUEUE_SECONDS, time.monotonic() - self._started)
        self._metrics.move(table.REQUESTS_WAITING, -1)
        self._metrics.move(table.REQUESTS_RUNNING, 1)

    def tokens(self, num_tokens: int, sample: int = 0) -> None:
        """Count tokens of a sample that came together."""
        if not num_tokens:
            return
        self.slot_found()
        now = time.monotonic()
        if not self._last_tokens:
            self._metrics.observe(table.FIRST_TOKEN_SECONDS, now - self._started)
        if sample in self._last_tokens:
            for _ in range(num_tokens):
                self._metrics.observe(table.BETWEEN_TOKENS_SECONDS, (now - self._last_tokens[sample]) / num_tokens)
        self._last_tokens[sample] = now

    def finished(
        self,
        reason: FinishReason,
        num_prompt_tokens: int,
        num_output_tokens: int,
        rounds: Mapping[tuple[int, int], int],
        num_cached_tokens: int = 0,
    ) -> None:
        """End the request with its counts in all; `rounds` are the number of rounds by (drafted, accepted) tokens."""
        metrics, by_position = self._metrics, Counter[int]()
        metrics.move(table.REQUESTS_RUNNING if self._is_running else table.REQUESTS_WAITING, -1)
        metrics.observe(table.REQUEST_SECONDS, time.monotonic() - self._started)
        metrics.add(table.REQUESTS_FINISHED, 1, finished_reason=reason)
        metrics.add(table.SERVED_PROMPT_TOKENS, num_prompt_tokens)
        metrics.add(table.SERVED_CACHED_TOKENS, num_cached_tokens)
        metrics.add(table.SERVED_GENERATION_TOKENS, num_output_tokens)
        metrics.add(table.SERVED_DRAFTS, sum(count for (drafted, _), count in rounds.items() if drafted))
        metrics.add(table.SERVED_DRAFT_TOKENS, sum(drafted * count for (drafted, _), count in rounds.items()))
        metrics.add(table.SERVED_ACCEPTED_TOKENS, sum(accepted * count for (_, accepted), count in rounds.items()))
        for (_, accepted), count in rounds.items():
            by_position.update(dict.fromkeys(range(accepted), count))
        for position, num_accepted in sorted(by_position.items()):
            metrics.add(table.SERVED_ACCEPTED_BY_POSITION, num_accepted, position=str(position))
