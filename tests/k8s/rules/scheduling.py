"""The places where pods of a Ray cluster may run: GPUs, taints, machines that are taken away, accounts, priorities."""

from __future__ import annotations

from collections.abc import Iterator

from tests.k8s.manifests import Object, cluster_spec, groups
from tests.k8s.rules import known
from tests.k8s.rules.labels import of_ray_node, selects

_ACCOUNTS = {"head": "dray-head", "worker": "dray-worker"}


def problems_with_pod(template: Object) -> Iterator[str]:
    """Yield the problems of where one pod may run."""
    spec = template["spec"]
    for each in spec.get("tolerations", []):
        expected = known.TAINTS.get(each.get("key", ""))
        if expected is None:
            yield f"tolerations: no node has a taint {each.get('key')!r}"
        elif (each.get("operator", "Equal"), each.get("value"), each.get("effect")) != expected:
            yield f"tolerations: that of {each['key']} is operator, value and effect {expected}"
    kind = spec.get("nodeSelector", {}).get(known.GPU_KIND)
    if kind is not None and kind not in known.GPUS:
        yield f"nodeSelector: no GPU is called {kind!r}"
    for name in spec.get("nodeSelector", {}).keys() - {known.GPU_KIND}:
        yield f"nodeSelector: no node has a label {name!r}"
    tolerated = {each.get("key") for each in spec.get("tolerations", [])}
    for key, operator, values in _node_terms(spec):
        if key not in known.SPOT:
            yield f"affinity: no node has a label {key!r}"
        elif operator in ("In", "NotIn") and values != [known.SPOT[key]]:
            yield f"affinity: {key} is {known.SPOT[key]!r} on nodes that are taken away, not {values}"
        elif operator in ("In", "Exists") and key in known.TAINTS and key not in tolerated:
            yield f"affinity: nodes with {key} have a taint, which the pod does not tolerate"
    for each in spec.get("topologySpreadConstraints", []):
        if each["topologyKey"] not in known.TOPOLOGIES:
            yield f"topologySpreadConstraints: no node has a label {each['topologyKey']!r}"
        if not selects(each["labelSelector"], {**template["metadata"]["labels"], **of_ray_node("gpu", "worker")}):
            yield "topologySpreadConstraints: does not select the pod itself"


def problems_with_cluster(ray: Object, priorities: dict[str, int]) -> Iterator[str]:
    """Yield the problems of a Ray cluster's pods beside each other; `priorities` are the values of the classes."""
    head = cluster_spec(ray)["headGroupSpec"]["template"]["spec"]
    avoided = {key for key, operator, _ in _node_terms(head) if operator in ("NotIn", "DoesNotExist")}
    for key in sorted(known.SPOT.keys() - avoided):
        yield f"head: may run on nodes with {key}, which are taken away"
    images = {}
    for name, group in groups(ray):
        spec, kind = group["template"]["spec"], "head" if name == "head" else "worker"
        if spec.get("serviceAccountName") != _ACCOUNTS[kind]:
            yield f"{name}: its service account is {_ACCOUNTS[kind]}"
        spots = {key for key, operator, _ in _node_terms(spec) if operator in ("In", "Exists")}
        is_spot = group.get("labels", {}).get("ray.io/market-type") == "spot"
        if is_spot is not (spots == known.SPOT.keys()):
            yield f"{name}: runs on nodes that are taken away if and only if its label ray.io/market-type is spot"
        limits = spec["containers"][0]["resources"]["limits"]
        if kind == "head" and known.GPU in limits:
            yield "head: no model runs on it, so it needs no GPU"
        repository, _, tag = spec["containers"][0]["image"].rpartition(":")
        version, _, device = tag.rpartition("-")
        images[name] = (repository.removesuffix("-head"), version)
        if "@" not in repository and device != ("cuda" if known.GPU in limits else "cpu"):
            yield f"{name}: its image is for {device}, and it has {'a' if known.GPU in limits else 'no'} GPU"
        if kind == "worker":
            mine, heads = (priorities.get(each.get("priorityClassName", ""), 0) for each in (spec, head))
            if not mine < heads:
                yield f"{name}: a head goes before workers, and its priority {heads} is not above {mine}"
    yield from _spot_first(ray)
    if len(set(images.values())) > 1:
        yield f"head and workers have different images, so perhaps another Ray: {images}"


def _spot_first(ray: Object) -> Iterator[str]:
    """Groups on machines that are taken away are asked first, and let go in the notice that clouds give."""
    by_market: dict[str, list[Object]] = {}
    for group in cluster_spec(ray).get("workerGroupSpecs", []):
        by_market.setdefault(group.get("labels", {}).get("ray.io/market-type", ""), []).append(group)
    others = [group.get("priority", 0) for group in by_market.get("on-demand", [])]
    for group in by_market.get("spot", []):
        if others and group.get("priority", 0) <= max(others):
            yield f"{group['groupName']}: its priority is not above that of on-demand nodes, which would be asked first"
        if (seconds := group["template"]["spec"].get("terminationGracePeriodSeconds", 30)) > 120:
            yield f"{group['groupName']}: clouds give 30 to 120 s of notice, and its pods have {seconds}"


def _node_terms(spec: Object) -> Iterator[tuple[str, str, list[str]]]:
    required = (
        spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    for term in required.get("nodeSelectorTerms", []):
        for each in term.get("matchExpressions", []):
            yield each["key"], each["operator"], each.get("values", [])
