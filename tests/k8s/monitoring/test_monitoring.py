"""Alerts and dashboards ask for metrics that exist."""

import json
import re
from typing import Any

import pytest

from actors.workers.replica import Replica
from endpoint.deployment import APP_NAME
from tests.k8s.manifests import K8S, OVERLAYS, cluster_spec, of_kind, ray_objects, render
from tests.k8s.monitoring.exported_names import exported_names, names_in, unknown_labels
from tests.k8s.monitoring.promtool import alert_groups

DASHBOARDS = sorted((K8S / "base" / "monitoring" / "dashboards").glob("*.json"))
ALERTS = [(rule["alert"], rule["expr"]) for group in alert_groups() for rule in group["rules"]]


def queries(dashboard: Any) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize(("alert", "query"), ALERTS)
def test_an_alert_reads_metrics_that_are_exported(alert, query):
    names = names_in(query)
    assert names
    assert names <= exported_names()
    assert unknown_labels(query) == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reads_metrics_that_are_exported(path):
    dashboard = json.loads(path.read_text())
    asked = [names_in(query) for query in queries(dashboard)]
    assert all(asked)
    assert set().union(*asked) <= exported_names()
    assert set().union(*(unknown_labels(query) for query in queries(dashboard))) == set()
    variables = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    for variable in variables:
        (selector, label) = re.fullmatch(r"label_values\((.*), (\w+)\)", variable).groups()
        assert names_in(selector) <= exported_names()
        assert unknown_labels(f"sum by ({label}) ({selector})") == set()


def test_every_metric_of_dray_is_in_a_dashboard_or_an_alert_or_listed_here():
    shown = set().union(*(names_in(query) for path in DASHBOARDS for query in queries(json.loads(path.read_text()))))
    of_dray = {name for name in exported_names() if name.startswith("ray_dray_")}
    endings = ("_count", "_sum")  # of histograms, of which the buckets are shown
    elsewhere = {
        "ray_dray_generations_total",
        "ray_dray_draft_timeouts_total",
        "ray_dray_units_left",
        "ray_dray_units_committed_total",
        "ray_dray_served_cached_prompt_tokens_total",
    }
    asked = {name for _, query in ALERTS for name in names_in(query)}
    assert {name for name in of_dray - shown - asked if not name.endswith(endings)} <= elsewhere


def test_a_metric_that_is_not_exported_is_noticed():
    assert names_in("sum(rate(ray_dray_output_token_total[5m]))") - exported_names() == {"ray_dray_output_token_total"}
    assert not names_in("ray_dray_output_tokens") & exported_names(), "the name of a counter ends in _total"


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ('sum by (model) (rate(ray_dray_http_requests_total{status="429"}[5m]))', {"model"}),
        ('sum by (status) (rate(ray_dray_http_requests_total{code="429"}[5m]))', {"code"}),
        ("histogram_quantile(0.9, sum by (le, run) (rate(ray_dray_time_to_first_token_seconds_bucket[5m])))", {"run"}),
        ("sum by (le) (ray_dray_rows_left)", {"le"}),
        ("sum by (anything) (ray_resources)", set()),
    ],
)
def test_a_label_that_a_metric_of_dray_does_not_have_is_noticed(query, unknown):
    assert unknown_labels(query) == unknown


def test_alerts_name_the_application_and_the_deployment_of_the_endpoint():
    text = " ".join(query for _, query in ALERTS)
    assert set(re.findall(r'application="(\w+)"', text)) == {APP_NAME}
    assert set(re.findall(r'deployment="(\w+)"', text)) == {Replica.__name__}


@pytest.mark.kubernetes
@pytest.mark.parametrize("folder", OVERLAYS)
def test_prometheus_finds_the_ports_of_a_head(folder):
    (ray,) = ray_objects(render(folder))
    ports = {port["name"] for port in cluster_spec(ray)["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]}
    asked = {each["port"] for each in of_kind(render("base/monitoring"), "PodMonitor")["spec"]["podMetricsEndpoints"]}
    assert asked - ports == {"metrics"}, "KubeRay adds that one"


@pytest.mark.kubernetes
def test_prometheus_may_reach_each_port_that_it_asks():
    numbers = {"metrics": 8080, "as-metrics": 44217, "dash-metrics": 44227}
    policies = [each for each in render("base/namespace") if each["kind"] == "NetworkPolicy"]
    (policy,) = [each["spec"] for each in policies if each["metadata"]["name"] == "metrics"]
    (rule,) = policy["ingress"]
    monitor = of_kind(render("base/monitoring"), "PodMonitor")["spec"]
    asked = {numbers[each["port"]] for each in monitor["podMetricsEndpoints"]}
    assert asked == {each["port"] for each in rule["ports"]}
    assert policy["podSelector"]["matchLabels"] == monitor["selector"]["matchLabels"]
