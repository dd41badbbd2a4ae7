"""Rules for network policies: Ray's ports are for its own nodes, and pods reach only what they need."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from tests.k8s.manifests import Object, name_of

_PORTS_OF_RAY = {6379, 8265, 10001, 52365}
_METADATA = (ip_address("169.254.169.254"), ip_address("fd00:ec2::254"))


def problems_with(objects: list[Object], ground: list[Object]) -> Iterator[str]:
    """Yield the problems of the policies among objects that are applied over a ground."""
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    if policies and not any(
        each["spec"]["podSelector"] == {}
        and set(each["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not each["spec"].keys() & {"ingress", "egress"}
        for each in [*policies, *(each for each in ground if each["kind"] == "NetworkPolicy")]
    ):
        yield "NetworkPolicy: none denies what no other allows"
    for each in policies:
        for rule in each["spec"].get("egress", []):
            yield from (f"{name_of(each)}: {problem}" for problem in _way_out(rule))
        for rule in each["spec"].get("ingress", []):
            if not rule.get("from"):
                yield f"{name_of(each)}: open to every pod and address"
            ports = {each for port in rule.get("ports") or [{}] for each in _PORTS_OF_RAY if each in ports_of(port)}
            for source in rule.get("from", []):
                if "ipBlock" in source:
                    yield f"{name_of(each)}: open to addresses"
                if source.get("namespaceSelector") == {} or source.get("podSelector") == {}:
                    yield f"{name_of(each)}: open to any pod"
                if ports - {8265} and not _is_ray_node(source):
                    yield f"{name_of(each)}: opens ports of Ray to others than its nodes"


def _is_ray_node(peer: Object) -> bool:
    """Tell whether the other end is a Ray node of this namespace: such nodes choose most of their ports freely."""
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    return labels.get("ray.io/is-ray-node") == "yes" and "namespaceSelector" not in peer


def ports_of(port: Object) -> range:
    """Return what an item of `ports` opens: every port if it names none, or one by a name, whose number is unknown."""
    first = port.get("port")
    return range(first, port.get("endPort", first) + 1) if isinstance(first, int) else range(1, 65536)


def _way_out(rule: Object) -> Iterator[str]:
    if not rule.get("to"):
        yield "lets everything out"
    names_ports = bool(rule.get("ports")) and all("port" in port for port in rule["ports"])
    for target in rule.get("to", []):
        if target.get("namespaceSelector") == {} or target.get("podSelector") == {}:
            yield "lets out to any pod"
        if not names_ports and not _is_ray_node(target):
            yield f"lets out to {target} by any port"
    for block in (target["ipBlock"] for target in rule.get("to", []) if "ipBlock" in target):
        inside = ip_network(block["cidr"])
        excepted = [ip_network(each) for each in block.get("except", [])]
        for metadata in _METADATA:
            if metadata in inside and not any(metadata in each for each in excepted):
                yield f"lets out to {metadata}, the metadata service, which hands out the node's credentials"
