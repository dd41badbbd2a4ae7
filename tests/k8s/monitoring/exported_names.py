"""The names of the metrics that Dray and Ray export, read from their own code, and the labels of Dray's metrics."""

import re
from functools import cache
from pathlib import Path

import promql_parser as promql
import ray
from prometheus_client import CollectorRegistry
from ray.autoscaler._private.prom_metrics import AutoscalerPrometheusMetrics
from ray.dashboard.modules.metrics.dashboards import default_dashboard_panels, serve_dashboard_panels
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from actors.metric_table import METRICS, SERVING_METRICS, Metric

# What Ray's agent, the Prometheus operator and our PodMonitor add to every series.
_ADDED = frozenset({"WorkerId", "NodeAddress", "SessionName", "Component", "Version"})
_ADDED |= {"namespace", "pod", "container", "job", "instance", "endpoint", "ray_io_cluster", "ray_io_group"}
# Neither Dray's nor Ray's: of KubeRay's operator (ray-operator/controllers/ray/metrics in its repository) and of
# kube-state-metrics (docs/metrics/workload/pod-metrics.md there).
_OF_KUBERNETES = {"kuberay_job_deployment_status", "kube_pod_container_status_terminated_reason"}
_SERVE = re.compile(r'"(serve_[a-z_0-9]+)"')


@cache
def exported_names() -> frozenset[str]:
    """Return the names of all metrics, as Prometheus sees them."""
    return frozenset(_of_dray() | _of_ray_nodes() | _of_serve() | _of_autoscaler() | _OF_KUBERNETES)


def names_in(query: str) -> set[str]:
    """Return the metrics that a query reads; raise ValueError if it is no PromQL."""
    return {str(selector.name) for selector in _selectors(promql.parse(query))}


def unknown_labels(query: str) -> set[str]:
    """Return the labels that a query asks of Dray's metrics, in braces or in `by`, and that they do not have."""
    found: set[str] = set()
    for selector in _selectors(promql.parse(query)):
        found |= _missing({each.name for each in selector.matchers.matchers}, selector.name)
    for node in _nodes(promql.parse(query)):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            assert node.modifier.type == promql.AggModifierType.By, "`without` keeps labels that no query names"
            for inner in _selectors(node.expr):
                found |= _missing(set(node.modifier.labels), inner.name)
    return found


def _missing(asked: set[str], name: str | None) -> set[str]:
    """Return those asked for that the metric does not have; the labels of Ray's metrics are not known."""
    for metric in (*METRICS, *SERVING_METRICS):
        if name in _in_prometheus(metric):
            return asked - _ADDED - set(metric.tags) - ({"le"} if metric.kind == "histogram" else set())
    return set()


def _selectors(expression: promql.Expr) -> list[promql.VectorSelector]:
    inside = [each.vector_selector if isinstance(each, promql.MatrixSelector) else each for each in _nodes(expression)]
    return [each for each in inside if isinstance(each, promql.VectorSelector)]


def _nodes(expression: promql.Expr) -> list[promql.Expr]:
    """Return an expression and all that is inside it."""
    found: list[promql.Expr] = []
    promql.walk(expression, found.append)
    return found


def _of_dray() -> set[str]:
    published = [metric for metric in (*METRICS, *SERVING_METRICS) if not metric.is_asked_for]
    return {name for metric in published for name in _in_prometheus(metric)}


def _in_prometheus(metric: Metric) -> set[str]:
    name = f"ray_{metric.name}"
    endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {name + ending for ending in endings[metric.kind]}


def _of_ray_nodes() -> set[str]:
    """Return the agent's gauges, and those of Ray's C++ core, which has no list of them, from Ray's own dashboard."""
    panels = Path(default_dashboard_panels.__file__).read_text()
    core = r"\b(ray_(?:resources|object_store_memory|tasks|actors|memory_manager_worker_eviction_total))\{"
    in_core = set(re.findall(core, panels))
    return {f"ray_{name}" for name in METRICS_GAUGES} | in_core


def _of_serve() -> set[str]:
    """Return the names in the code of Ray Serve, with the endings that Ray's own dashboard shows."""
    folder = Path(ray.__file__).parent / "serve" / "_private"
    names = {name for path in folder.glob("*.py") for name in _SERVE.findall(path.read_text())}
    shown = set(re.findall(r"\b(ray_serve_[a-z_0-9]+)", Path(serve_dashboard_panels.__file__).read_text()))
    endings = ("", "_total", "_bucket", "_count", "_sum")
    return {f"ray_{name}" for name in names} | {
        each for each in shown if any(each == f"ray_{name}{ending}" for name in names for ending in endings)
    }


def _of_autoscaler() -> set[str]:
    registry = CollectorRegistry()
    AutoscalerPrometheusMetrics(session_name="test", registry=registry)
    return {
        sample for metric in registry.collect() for sample in {metric.name, *(each.name for each in metric.samples)}
    }
