"""Who may reach what, as the network policies of what is rendered say it together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s.manifests import cluster_spec, of_kind, render

Object = dict[str, Any]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector takes a pod with these labels."""
    expressions = [
        (labels.get(each["key"]) in each["values"]) is (each["operator"] == "In")
        for each in selector.get("matchExpressions", [])
    ]
    return selector.get("matchLabels", {}).items() <= labels.items() and all(expressions)


def ways_out(objects: list[Object], labels: dict[str, str]) -> list[tuple[Object, int]]:
    """Targets and ports that a pod with these labels may reach."""
    return [
        (target, port["port"])
        for each in objects
        if each["kind"] == "NetworkPolicy" and selects(each["spec"]["podSelector"], labels)
        for rule in each["spec"].get("egress", [])
        for target in rule["to"]
        for port in rule.get("ports", [])
    ]


def labels_of(folder: str, node_type: str) -> dict[str, str]:
    """Of a pod of the service, as KubeRay labels it."""
    spec = cluster_spec(of_kind(render(folder), "RayService"))
    group = spec["workerGroupSpecs"][0] if node_type == "worker" else spec["headGroupSpec"]
    is_node = "no" if node_type == "redis-cleanup" else "yes"
    return {**group["template"]["metadata"]["labels"], "ray.io/node-type": node_type, "ray.io/is-ray-node": is_node}


@pytest.mark.parametrize(("node_type", "may"), [("head", True), ("redis-cleanup", True), ("worker", False)])
def test_the_head_and_who_cleans_up_after_it_reach_redis(node_type: str, may: bool) -> None:
    objects = [*render("base/namespace"), *render("overlays/head-ft")]
    out = ways_out(objects, labels_of("overlays/head-ft", node_type))
    assert any(port == 6379 and "redis" in str(target) for target, port in out) is may


@pytest.mark.parametrize("port", [443, 6443, 8443])
def test_a_head_reaches_the_api_of_kubernetes_where_it_listens(port: int) -> None:
    out = ways_out(render("base/namespace"), labels_of("overlays/service", "head"))
    assert any(number == port and target.get("ipBlock", {}).get("cidr") == "0.0.0.0/0" for target, number in out)


def test_a_worker_reaches_addresses_by_https_alone() -> None:
    out = ways_out(render("base/namespace"), labels_of("overlays/service", "worker"))
    world = {port for target, port in out if target.get("ipBlock", {}).get("cidr") == "0.0.0.0/0"}
    assert world == {443}
