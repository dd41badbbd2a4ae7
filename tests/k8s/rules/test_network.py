"""The network policies that are rendered, read together, say which pod may reach which target."""

from __future__ import annotations

import pytest

from tests.k8s.manifests import OVERLAYS, Object, cluster_spec, of_kind, render
from tests.k8s.rules.labels import selects
from tests.k8s.rules.network import ports_of

pytestmark = pytest.mark.kubernetes


def ways_out(objects: list[Object], labels: dict[str, str]) -> list[tuple[Object, range]]:
    """Return the targets and ports that a pod with these labels may reach; an empty target is everything."""
    return [
        (target, ports_of(port))
        for each in objects
        if each["kind"] == "NetworkPolicy" and selects(each["spec"]["podSelector"], labels)
        for rule in each["spec"].get("egress", [])
        for target in rule.get("to") or [{}]
        for port in rule.get("ports") or [{}]
    ]


def reaches(out: list[tuple[Object, range]], what: str, port: int) -> bool:
    """Tell whether one of the ways out leads to that port of a target that names `what`, or of everything."""
    return any(port in ports and (not target or what in str(target)) for target, ports in out)


def labels_of(folder: str, node_type: str) -> dict[str, str]:
    """Return the labels that KubeRay gives a pod of the service."""
    spec = cluster_spec(of_kind(render(folder), "RayService"))
    group = spec["workerGroupSpecs"][0] if node_type == "worker" else spec["headGroupSpec"]
    is_node = "no" if node_type == "redis-cleanup" else "yes"
    return {**group["template"]["metadata"]["labels"], "ray.io/node-type": node_type, "ray.io/is-ray-node": is_node}


@pytest.mark.parametrize(("node_type", "may"), [("head", True), ("redis-cleanup", True), ("worker", False)])
def test_the_head_and_the_job_that_cleans_up_after_it_reach_redis_and_workers_do_not(node_type: str, may: bool) -> None:
    out = ways_out(render("base/namespace"), labels_of("overlays/head-ft", node_type))
    assert reaches(out, "redis", 6379) is may


@pytest.mark.parametrize(
    "rule",
    [
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "redis"}}}]},
        {"to": [{"namespaceSelector": {"matchLabels": {"name": "redis"}}}], "ports": [{"protocol": "TCP"}]},
        {"ports": [{"port": 6000, "endPort": 7000}]},
        {"ports": [{"port": "redis"}]},
        {},
    ],
)
def test_a_rule_that_leaves_out_targets_or_ports_leads_to_all_of_them(rule: Object) -> None:
    policy = {"kind": "NetworkPolicy", "spec": {"podSelector": {}, "egress": [rule]}}
    out = ways_out([*render("base/namespace"), policy], labels_of("overlays/head-ft", "worker"))
    assert reaches(out, "redis", 6379)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_no_policy_goes_with_an_overlay_before_its_cluster_has_ended(folder: str) -> None:
    assert not [each for each in render(folder) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("port", [443, 6443, 8443])
def test_a_head_reaches_the_api_of_kubernetes_where_it_listens(port: int) -> None:
    out = ways_out(render("base/namespace"), labels_of("overlays/service", "head"))
    assert reaches(out, "'0.0.0.0/0'", port)


def test_a_worker_reaches_addresses_by_https_alone() -> None:
    out = ways_out(render("base/namespace"), labels_of("overlays/service", "worker"))
    assert [port for port in range(1, 65536) if reaches(out, "'0.0.0.0/0'", port)] == [443]
