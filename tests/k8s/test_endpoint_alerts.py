"""When the alerts on an endpoint speak, and when they do not, over hand-made series."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.k8s.manifests import of_kind, render
from tests.k8s.promql import Series, Vector, evaluate

MINUTE = 60.0
FAILURES = "ray_serve_health_check_failures_total"
STATUS = "ray_serve_application_status"
HEALTHY = "ray_serve_deployment_replica_healthy"

# What Ray's agent makes of a counter of Serve's, whose name has the ending of a counter already.
_AGENT = f"""
from prometheus_client import generate_latest
from ray._private.telemetry.open_telemetry_metric_recorder import OpenTelemetryMetricRecorder
recorder = OpenTelemetryMetricRecorder()
recorder.register_counter_metric("{FAILURES.removeprefix("ray_")}", "x")
recorder.set_metric_value("{FAILURES.removeprefix("ray_")}", {{"application": "dray"}}, 3.0)
print(generate_latest().decode())
"""


def expression(alert: str) -> str:
    rules = [
        rule
        for folder in ("base/monitoring", "base/monitoring-endpoint")
        for group in of_kind(render(folder), "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    (found,) = [rule["expr"] for rule in rules if rule["alert"] == alert]
    return str(found)


def of_serve(name: str, values: list[tuple[float, float]], **labels: str) -> Series:
    """A series of the application in the namespace dray; times in minutes, each value every 15 s until the next."""
    samples: list[tuple[float, float]] = []
    for (minute, value), (until, _) in zip(values, [*values[1:], (60.0, 0.0)], strict=True):
        samples += [(minute * MINUTE + step * 15.0, value) for step in range(int((until - minute) * 4))]
    return Series(name, {"application": "dray", "namespace": "dray", **labels}, samples)


def asked(alert: str, series: list[Series], minute: float) -> Vector:
    return evaluate(expression(alert), series, minute * MINUTE)


def engine(name: str, *values: tuple[float, float]) -> Series:
    return of_serve(FAILURES, list(values), deployment="Replica", replica=name)


def test_an_engine_that_hangs_is_told_though_its_counter_begins_at_three() -> None:
    hung = [engine("a", (20, 3))]
    assert asked("DrayReplicaUnhealthy", hung, 19) == {}
    assert list(asked("DrayReplicaUnhealthy", hung, 21).values()) == [3.0]
    assert list(asked("DrayReplicaUnhealthy", hung, 34).values()) == [3.0]
    assert asked("DrayReplicaUnhealthy", hung, 40) == {}


def test_engines_that_hang_one_after_the_other_are_told_together() -> None:
    hung = [engine("a", (1, 1), (20, 2)), engine("b", (22, 1)), engine("c", (24, 1))]
    assert asked("DrayReplicaUnhealthy", hung, 23) == {}
    assert list(asked("DrayReplicaUnhealthy", hung, 25).values()) == [3.0]


def test_engines_that_go_as_there_is_less_to_do_disturb_nobody() -> None:
    gone = of_serve(HEALTHY, [(0, 1), (20, 0)], deployment="Replica", replica="a")
    assert all(asked("DrayReplicaUnhealthy", [gone], minute) == {} for minute in (19, 20, 21, 26))


def test_one_look_that_fails_disturbs_nobody() -> None:
    assert all(asked("DrayReplicaUnhealthy", [engine("a", (20, 1))], minute) == {} for minute in (20, 21, 34))


def test_an_endpoint_without_an_engine_is_told_and_one_without_a_head_by_the_other_alert() -> None:
    status = of_serve(STATUS, [(0, 6), (30, 0)])
    head_gone = [Series(status.name, status.labels, [each for each in status.samples if each[0] < 30 * MINUTE])]
    well = [*head_gone, of_serve(HEALTHY, [(0, 1)], deployment="Replica", replica="a")]
    assert asked("DrayEndpointNotReady", well, 20) == {}
    assert list(asked("DrayEndpointNotReady", head_gone, 20)) == [frozenset({("namespace", "dray")})]
    assert asked("DrayEndpointNotReady", head_gone, 45) == {}
    assert asked("DrayEndpointAbsent", head_gone, 35) == {}
    (labels,) = asked("DrayEndpointAbsent", head_gone, 45)
    assert ("namespace", "dray") in labels
    (labels,) = asked("DrayEndpointAbsent", [], 0)
    assert ("namespace", "dray") in labels


def test_the_counter_of_failed_looks_keeps_its_name_on_the_way_to_prometheus() -> None:
    done = subprocess.run([sys.executable, "-c", _AGENT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = {line.partition("{")[0] for line in done.stdout.splitlines() if "health_check" in line and line[0] != "#"}
    assert names == {FAILURES}


@pytest.mark.parametrize("query", ["rate(x[5m])", "x / y", "max by (a) (x)"])
def test_what_the_evaluation_does_not_know_is_refused(query: str) -> None:
    with pytest.raises(NotImplementedError):
        evaluate(query, [Series("x", {}, [(0.0, 1.0)])], 0.0)
