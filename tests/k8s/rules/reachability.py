"""The network policies of a namespace, evaluated for every pair of pods, and of pods and what is outside."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from tests.k8s.manifests import Object, cluster_spec, groups, name_of, pod_templates, ray_objects

_EVERY = (22, 53, 80, 443, 6379, 6443, 8000, 8080, 8265, 8443, 10001, 44217, 44227, 52365)
_EVERY += (8404, 9101, 30000, 31000)  # Ray's HAProxy: its statistics, and the processes that it leads to
_ALL = frozenset(_EVERY)
_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Pod:
    """A pod as selectors see it: what makes it, its part (head, submitter, ...) and its labels."""

    owner: str
    part: str
    labels: dict[str, str] = field(hash=False)

    @property
    def name(self) -> str:
        """The owner and the part, for messages."""
        return f"{self.part} of {self.owner}"


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Tell whether a label selector matches a pod, or a namespace, with these labels."""
    for each in selector.get("matchExpressions", []):
        has, value = each["key"] in labels, labels.get(each["key"])
        values = each.get("values", [])
        if not {
            "In": has and value in values,
            "NotIn": not has or value not in values,
            "Exists": has,
            "DoesNotExist": not has,
        }[each["operator"]]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def pods_of(objects: list[Object]) -> Iterator[Pod]:
    """Yield the pods that objects make, with all their labels."""
    for each in objects:
        clusters = dict(groups(each)) if each in ray_objects([each]) else {}
        for name, template in pod_templates(each):
            labels = dict(template["metadata"].get("labels", {}))
            if name in clusters:
                labels |= of_ray_node(name, "head" if name == "head" else "worker")
            yield Pod(name_of(each), name, labels)
        # The Job by which KubeRay clears Redis after a cluster has the labels of the head.
        if clusters and cluster_spec(each).get("gcsFaultToleranceOptions", {}).get("backend") == "redis":
            labels = dict(clusters["head"]["template"]["metadata"]["labels"])
            yield Pod(name_of(each), "redis-cleanup", {**labels, "ray.io/node-type": "redis-cleanup"})


def of_ray_node(group: str, node_type: str) -> dict[str, str]:
    """Return the labels that KubeRay gives a Ray node (`labelPod` in its controllers/ray/common/pod.go)."""
    group = "headgroup" if group == "head" else group
    is_node = {"ray.io/node-type": node_type, "ray.io/group": group, "ray.io/is-ray-node": "yes"}
    return is_node | {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/created-by": "kuberay-operator"}


@dataclass(frozen=True)
class Place:
    """One end of a connection: a pod here, a pod of another namespace, or an address outside."""

    name: str
    labels: dict[str, str] = field(default_factory=dict, hash=False)
    namespace: dict[str, str] | None = field(default=None, hash=False)  # labels; None is this namespace
    address: str | None = None
    rules: dict[str, list[Object]] = field(default_factory=dict, hash=False)  # that policies have for it, by their way


def _pod_of(namespace: str, name: str, **labels: str) -> Place:
    return Place(name, labels, {_NAME: namespace})


_OPERATOR = _pod_of("kuberay-system", "KubeRay's operator", **{"app.kubernetes.io/name": "kuberay-operator"})
_IMPOSTOR = _pod_of("kuberay-system", "another pod of kuberay-system", **{"app.kubernetes.io/name": "other"})
_PROMETHEUS = _pod_of("monitoring", "Prometheus", **{"app.kubernetes.io/name": "prometheus"})
_GATEWAY = Place("a gateway", {}, {_NAME: "ingress", "dray-gateway": "yes"})
_STRANGER = _pod_of("default", "a pod of another namespace", app="x")
_NAMES = _pod_of("kube-system", "the name service", **{"k8s-app": "kube-dns"})
_REDIS = _pod_of("redis", "Redis", app="redis")
_NEIGHBOUR = Place("a pod of this namespace that is not ours", {"app": "x"})
_NEIGHBOUR_NODE = Place("a Ray node that is not ours", {"ray.io/is-ray-node": "yes", "ray.io/node-type": "head"})
_NODE_CACHE = Place("names on the node", address="169.254.20.10")
_WORLD = Place("an address of the internet", address="52.95.110.1")
_WORLD_6 = Place("an address of the internet (IPv6)", address="2600:1f00::1")
_METADATA = Place("the metadata service", address="169.254.169.254")
_METADATA_6 = Place("the metadata service (IPv6)", address="fd00:ec2::254")
_OUTSIDE = (_OPERATOR, _IMPOSTOR, _PROMETHEUS, _GATEWAY, _STRANGER, _NAMES, _REDIS, _NODE_CACHE, _WORLD, _WORLD_6)
_OUTSIDE += (_METADATA, _METADATA_6, _NEIGHBOUR, _NEIGHBOUR_NODE)


def problems_with(policies: list[Object], pods: list[Pod]) -> Iterator[str]:
    """Yield each pair whose open ports are not those that it needs, and each policy that is about no pod."""
    for each in policies:
        if not any(selects(each["spec"]["podSelector"], pod.labels) for pod in pods):
            yield f"NetworkPolicy/{each['metadata']['name']}: selects no pod"
    different = {(pod.part, *sorted(pod.labels.items())): pod for pod in pods}.values()
    here = [(pod, Place(pod.name, pod.labels, rules=_rules_about(policies, pod))) for pod in different]
    for pod, place in here:
        for other, target in here:
            yield from _compare(place, target, _between(pod, other))
        for outside in _OUTSIDE:
            yield from _compare(place, outside, _out(pod, outside))
            yield from _compare(outside, place, _in(pod, outside))


def _compare(source: Place, target: Place, expected: frozenset[int]) -> Iterator[str]:
    for protocol in ("TCP", "UDP"):
        there = frozenset(port for port in _EVERY if _is_open(source, target, port, protocol))
        wanted = expected if protocol == "TCP" or expected == _ALL else expected & {53}
        if missing := sorted(wanted - there):
            yield f"NetworkPolicy: {source.name} does not reach {target.name} at {protocol} {missing}"
        if surplus := sorted(there - wanted):
            yield f"NetworkPolicy: {source.name} reaches {target.name} at {protocol} {surplus}, and needs not"


def _rules_about(policies: list[Object], pod: Pod) -> dict[str, list[Object]]:
    """Return the rules that hold for a pod, by their way; there is no way that no policy is about."""
    about = [each["spec"] for each in policies if selects(each["spec"]["podSelector"], pod.labels)]
    rules: dict[str, list[Object]] = {}
    for spec in about:
        for kind in spec.get("policyTypes", ["Ingress"]):
            rules.setdefault(kind, []).extend(spec.get(kind.lower(), []))
    return rules


def _is_open(source: Place, target: Place, port: int, protocol: str) -> bool:
    ends = ((source, target, "Egress", "to"), (target, source, "Ingress", "from"))
    return all(
        way not in mine.rules
        or any(
            any(_is_peer(peer, other) for peer in rule.get(peers) or [{}])
            and any(_is_port(each, port, protocol) for each in rule.get("ports") or [{}])
            for rule in mine.rules[way]
        )
        for mine, other, way, peers in ends
    )


def _is_peer(peer: Object, place: Place) -> bool:
    if not peer:
        return True
    if "ipBlock" in peer:
        if place.address is None:
            return False
        address, block = ip_address(place.address), peer["ipBlock"]
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(each) for each in block.get("except", [])
        )
    if place.address is not None:
        return False
    if "namespaceSelector" in peer:
        in_namespace = selects(peer["namespaceSelector"], place.namespace or {_NAME: "dray"})
    else:
        in_namespace = place.namespace is None
    return in_namespace and selects(peer.get("podSelector", {}), place.labels)


def _is_port(each: Object, port: int, protocol: str) -> bool:
    if "port" not in each:
        return bool(each.get("protocol", protocol) == protocol)
    if each.get("protocol", "TCP") != protocol or not isinstance(each["port"], int):
        return False  # a port by its name would be that of the target's container, and ours are numbers
    return bool(each["port"] <= port <= each.get("endPort", each["port"]))


def _ports(*ports: int) -> frozenset[int]:
    return frozenset(ports)


def _is_node(pod: Pod) -> bool:
    return pod.labels.get("ray.io/is-ray-node") == "yes"


def _between(source: Pod, target: Pod) -> frozenset[int]:
    """Ray's nodes choose their ports; a submitter speaks to the head's dashboard; no one else speaks to another."""
    if _is_node(source) and _is_node(target):
        return _ALL
    return _ports(8265) if source.part == "submitter" and target.part == "head" else _ports()


def _out(source: Pod, target: Place) -> frozenset[int]:
    """Names for all, HTTPS for what reads storage, the Kubernetes API for heads, Redis for the head of an endpoint."""
    if target in (_NAMES, _NODE_CACHE):
        return _ports(53)
    if target in (_WORLD, _WORLD_6):
        needs = source.part not in ("submitter", "prepull")
        return _ports(443, 6443, 8443) if source.part == "head" else _ports(443) if needs else _ports()
    if target is _REDIS and source.owner.startswith("RayService") and source.part in ("head", "redis-cleanup"):
        return _ports(6379)
    return _ports()


def _in(target: Pod, source: Place) -> frozenset[int]:
    """Jobs from the operator, metrics to Prometheus, requests from a gateway to an endpoint."""
    if not _is_node(target):
        return _ports()
    if source is _OPERATOR and target.part == "head":
        return _ports(8265, 8000)
    if source is _PROMETHEUS:
        return _ports(8080, 44217, 44227)
    return _ports(8000) if source is _GATEWAY and target.owner.startswith("RayService") else _ports()
