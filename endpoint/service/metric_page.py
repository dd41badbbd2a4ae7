"""The page `/metrics`: what all processes of the endpoint have counted, also under vLLM's names for the same things.

Dashboards, load tools and gateways that were made for vLLM look for its names. Only what means the same has one
(`Metric.vllm` in `actors/metric_table.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import prometheus_client as prometheus
from prometheus_client.samples import Sample

from actors import metric_table as table
from actors.engine.loop import EngineStats

Family = prometheus.Metric  # the samples of one metric
_VLLM_NAMES = {metric.name: metric.vllm for metric in table.SERVING_METRICS}
_VLLM_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}  # the others it has not


def page(families: Iterable[Family]) -> bytes:
    """Return the page in Prometheus's text format; families of the same name are those of several processes."""
    together: dict[str, Family] = {}
    for family in families:
        for named in (family, *_under_vllm_names(family)):
            known = together.setdefault(named.name, _empty(named, named.name))
            known.samples += named.samples
    return prometheus.generate_latest(SimpleNamespace(collect=together.values))


def of_process(families: Iterable[Family], process: str) -> list[Family]:
    """Return the families with a label that names their process, so that each of their series has one source."""
    return [
        _with_samples(f, (s._replace(labels={**s.labels, "process": process}) for s in f.samples)) for f in families
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


def _under_vllm_names(family: Family) -> list[Family]:
    return [
        _with_samples(_empty(family, name), (_renamed(s, family.name, name) for s in family.samples if _has_vllm(s)))
        for name in _VLLM_NAMES.get(family.name, ())
    ]


def _has_vllm(sample: Sample) -> bool:
    return sample.labels.get("finished_reason", "stop") in _VLLM_REASONS


def _renamed(sample: Sample, name: str, new_name: str) -> Sample:
    labels: dict[str, Any] = dict(sample.labels)
    if "finished_reason" in labels:
        labels["finished_reason"] = _VLLM_REASONS[labels["finished_reason"]]
    return sample._replace(name=new_name + sample.name.removeprefix(name), labels=labels)


def _empty(family: Family, name: str) -> Family:
    return Family(name, family.documentation, family.type)


def _with_samples(family: Family, samples: Iterable[Sample]) -> Family:
    new = _empty(family, family.name)
    new.samples = list(samples)
    return new
