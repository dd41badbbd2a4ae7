"""Which selector selects which pod, with the labels that KubeRay adds to those of a template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.k8s.manifests import Object, cluster_spec, groups, name_of, pod_templates, ray_objects


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
        if clusters and "gcsFaultToleranceOptions" in cluster_spec(each):
            labels = dict(clusters["head"]["template"]["metadata"]["labels"])
            yield Pod(name_of(each), "redis-cleanup", {**labels, "ray.io/node-type": "redis-cleanup"})


def of_ray_node(group: str, node_type: str) -> dict[str, str]:
    """Return the labels that KubeRay gives a Ray node (`labelPod` in its controllers/ray/common/pod.go)."""
    group = "headgroup" if group == "head" else group
    is_node = {"ray.io/node-type": node_type, "ray.io/group": group, "ray.io/is-ray-node": "yes"}
    return is_node | {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/created-by": "kuberay-operator"}
