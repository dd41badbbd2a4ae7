"""Kueue: a job in a queue, the queues themselves, and whether the quota has room for the job."""

from __future__ import annotations

from collections.abc import Iterator

from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import Object, all_overlays, cluster_spec, groups, name_of, ray_objects
from tests.k8s.rules import known
from tests.k8s.rules.labels import selects

_PREFIX = "kueue.x-k8s.io/"
_QUEUE, _ELASTIC = f"{_PREFIX}queue-name", f"{_PREFIX}elastic-job"
_MOST_GROUPS = 17


def problems_with(objects: list[Object], there: list[Object]) -> Iterator[str]:
    """Yield the problems of queues and of jobs in them; `there` has the queues of objects and of the ground."""
    by_kind: dict[str, dict[str, Object]] = {"LocalQueue": {}, "ClusterQueue": {}, "ResourceFlavor": {}}
    for each in there:
        by_kind.get(each["kind"], {})[each["metadata"]["name"]] = each
    for each in objects:
        yield from (f"{name_of(each)}: {problem}" for problem in _queue(each, by_kind))
    for ray in ray_objects(objects):
        yield from (f"{name_of(ray)}: {problem}" for problem in _job(ray, by_kind))


def _queue(each: Object, by_kind: dict[str, dict[str, Object]]) -> Iterator[str]:
    if each["kind"] == "LocalQueue" and each["spec"]["clusterQueue"] not in by_kind["ClusterQueue"]:
        yield f"there is no ClusterQueue {each['spec']['clusterQueue']!r}"
    if each["kind"] == "ClusterQueue":
        if not selects(each["spec"].get("namespaceSelector", {"matchLabels": {"x": "x"}}), _NAMESPACE):
            yield "its namespaceSelector does not select the namespace dray"
        for job in ray_objects(all_overlays()):  # the largest too, which is in no queue until a person puts it there
            if job["kind"] == "RayJob":
                yield from (f"{name_of(job)}: {problem}" for problem in _quota(job, each))
        for group in each["spec"]["resourceGroups"]:
            for flavor in group["flavors"]:
                if flavor["name"] not in by_kind["ResourceFlavor"]:
                    yield f"there is no ResourceFlavor {flavor['name']!r}"
                if [resource["name"] for resource in flavor["resources"]] != group["coveredResources"]:
                    yield f"flavor {flavor['name']}: its resources are not coveredResources in their order"
    if each["kind"] == "ResourceFlavor":
        for name, value in each["spec"].get("nodeLabels", {}).items():
            if name != known.GPU_KIND or value not in known.GPUS:
                yield f"no node has the label {name}: {value}"


_NAMESPACE = {"kubernetes.io/metadata.name": "dray"}


def _job(ray: Object, by_kind: dict[str, dict[str, Object]]) -> Iterator[str]:
    spec, metadata = cluster_spec(ray), ray["metadata"]
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    for name in sorted(labels):
        if name.startswith(_PREFIX) and name not in known.KUEUE_LABELS:
            yield f"Kueue knows no label {name}"
    for name, value in annotations.items():
        if "kueue" in name and known.KUEUE_ANNOTATIONS.get(name) != value:
            yield f"Kueue knows no annotation {name}: {value}"
    if _QUEUE not in labels:
        if ray["spec"].get("suspend"):
            yield "suspended, and in no queue that would let it begin"
        if any("kueue" in name for name in (*labels, *annotations)):
            yield f"it has no label {_QUEUE}, so Kueue does not see it"
        return
    if not ray["spec"].get("suspend") or not ray["spec"].get("shutdownAfterJobFinishes"):
        yield "a job in a queue begins suspended, and shuts its cluster down when it ends"
    if bool(spec.get("enableInTreeAutoscaling")) is not (annotations.get(_ELASTIC) == "true"):
        yield f"a job in a queue has an autoscaler if and only if {_ELASTIC} is true"
    if len(spec["workerGroupSpecs"]) > _MOST_GROUPS or "head" in [
        each["groupName"] for each in spec["workerGroupSpecs"]
    ]:
        yield f"Kueue takes {_MOST_GROUPS} groups of workers at most, and none that is called head"
    local = by_kind["LocalQueue"].get(labels[_QUEUE])
    if local is None:
        yield f"there is no LocalQueue {labels[_QUEUE]!r}"
    elif (queue := by_kind["ClusterQueue"].get(local["spec"]["clusterQueue"])) is not None:
        yield from _quota(ray, queue)


def _quota(ray: Object, queue: Object) -> Iterator[str]:
    quota = {
        resource["name"]: sum(
            parse_quantity(each["nominalQuota"])
            for flavor in group["flavors"]
            for each in flavor["resources"]
            if each["name"] == resource["name"]
        )
        for group in queue["spec"]["resourceGroups"]
        for resource in group["flavors"][0]["resources"]
    }
    most = "maxReplicas" if cluster_spec(ray).get("enableInTreeAutoscaling") else "replicas"
    asked: dict[str, float] = {}
    for name, group in groups(ray):
        count = 1 if name == "head" else group[most]
        for resource, amount in group["template"]["spec"]["containers"][0]["resources"]["requests"].items():
            asked[resource] = asked.get(resource, 0) + float(parse_quantity(amount)) * count
    for resource, amount in asked.items():
        if resource not in quota:
            yield f"ClusterQueue {queue['metadata']['name']} does not cover {resource}, so the job never begins"
        elif amount > quota[resource]:
            name = queue["metadata"]["name"]
            yield f"it may take {amount:g} of {resource}, and ClusterQueue {name} has {quota[resource]:g}"
