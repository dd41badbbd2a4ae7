"""What we and KubeRay's operator (1.7) ask of manifests that are applied together, beyond each object's schema."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from packaging.version import InvalidVersion, Version
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import ROOT, Object, cluster_spec, groups, name_of, pod_templates, ray_objects
from tests.k8s.rules import network, schemas

GPU_KIND = "nvidia.com/gpu.product"
_OUR_SECRETS = {"dray-object-store", "dray-hub", "dray-api-keys", "dray-redis"}  # made by the reader of k8s/README.md
_IN_EVERY_NAMESPACE = "kube-root-ca.crt"
_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_DELETED_FIRST = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


def problems_with(objects: list[Object], ground: list[Object]) -> list[str]:
    """Return the problems of objects that are applied together, over a ground that was applied before.

    Where a schema finds something, nothing else is looked at: the other rules rely on the schemas.
    """
    by_schema = [f"{name_of(each)}: {problem}" for each in objects for problem in schemas.problems_with(each)]
    if by_schema:
        return by_schema
    found = [*_names(objects), *network.problems_with(objects, ground)]
    for each in objects:
        found += [f"{name_of(each)}: {problem}" for problem in schemas.problems_with_ours(each["kind"], each)]
        for name, template in pod_templates(each):
            found += [f"{name_of(each)} {name}: {problem}" for problem in _pod(template["spec"], objects + ground)]
    for ray in ray_objects(objects):
        found += [f"{name_of(ray)}: {problem}" for problem in [*_ray(ray), *_budget(objects, ray)]]
    return found


def _names(objects: list[Object]) -> Iterator[str]:
    seen = [name_of(each) for each in objects]
    yield from (f"{name}: there twice" for name in sorted({name for name in seen if seen.count(name) > 1}))
    for each in objects:
        has_namespace = "namespace" in each["metadata"]
        if has_namespace == (each["kind"] in ("Namespace", "PriorityClass")):
            yield f"{name_of(each)}: {'has' if has_namespace else 'has no'} namespace"


def _pod(spec: Object, there: list[Object]) -> Iterator[str]:
    yield from schemas.problems_with_ours("Pod", spec)
    yield from _references(spec, {name_of(each) for each in there})
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for problem in (*_container(container, volumes), *_drain(container, spec)):
            yield f"container {container['name']}: {problem}"


def _container(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    yield from _resources(container.get("resources", {}))
    in_memory = 0
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"])
        if volume is None:
            yield f"volumeMounts: no volume is called {mount['name']!r}"
        elif _holds_token(volume):
            yield "volumeMounts: a token of Kubernetes, which only the autoscaler needs"
        elif volume.get("emptyDir", {}).get("medium") == "Memory":
            in_memory += int(parse_quantity(volume["emptyDir"].get("sizeLimit", "0")))
    memory = container.get("resources", {}).get("limits", {}).get("memory")
    if memory is not None and 2 * in_memory > parse_quantity(memory):
        yield f"volumes in memory may take {in_memory} bytes of the {memory} that the container has: more than half"


def _resources(resources: Object) -> Iterator[str]:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in sorted(set(requests) ^ set(limits)):
        yield f"resources: {name} is only in {'requests' if name in requests else 'limits'}"
    for name in sorted(set(requests) & set(limits)):
        if parse_quantity(requests[name]) != parse_quantity(limits[name]):
            yield f"resources: the request of {name} is not its limit"


def _drain(container: Object, spec: Object) -> Iterator[str]:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if command is None:
        return
    if not (ROOT / command[1].removeprefix("/opt/dray/")).is_file():
        yield f"preStop: {command[1]} is not in the repository"
    if int(command[2]) >= spec.get("terminationGracePeriodSeconds", 30):
        yield "preStop: may take as long as the pod has, terminationGracePeriodSeconds"


def _references(spec: Object, there: set[str]) -> Iterator[str]:
    wanted = [f"ServiceAccount/{spec['serviceAccountName']}"] if "serviceAccountName" in spec else []
    if "priorityClassName" in spec:
        wanted.append(f"PriorityClass/{spec['priorityClassName']}")
    for volume in spec.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            wanted.append(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
        for source in (volume, *volume.get("projected", {}).get("sources", [])):
            if "configMap" in source and source["configMap"]["name"] != _IN_EVERY_NAMESPACE:
                wanted.append(f"ConfigMap/{source['configMap']['name']}")
            if "secret" in source:
                wanted.append(f"Secret/{source['secret'].get('secretName') or source['secret']['name']}")
    for container in spec["containers"]:
        sources = [each.get("valueFrom", {}).get("secretKeyRef") for each in container.get("env", [])]
        sources += [each.get("secretRef") for each in container.get("envFrom", [])]
        wanted += [f"Secret/{source['name']}" for source in sources if source]
    for name in set(wanted) - there - {f"Secret/{secret}" for secret in _OUR_SECRETS}:
        yield f"refers to {name}, which is nowhere"


def _ray(ray: Object) -> Iterator[str]:
    spec = cluster_spec(ray)
    yield from schemas.problems_with_ours("Cluster", spec)
    yield from _version(spec.get("rayVersion", ""))
    yield from _autoscaler_token(spec)
    names = [group["groupName"] for group in spec.get("workerGroupSpecs", [])]
    if len(names) > len(set(names)):
        yield f"workerGroupSpecs: two groups have one name: {', '.join(names)}"
    for group in spec.get("workerGroupSpecs", []):
        low, high, replicas = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1), group.get("replicas", 0)
        if not low <= replicas <= high:
            yield f"{group['groupName']}: replicas {replicas} is not between minReplicas {low} and maxReplicas {high}"
    for name, group in groups(ray):
        store = int(group.get("rayStartParams", {}).get("object-store-memory", 0))
        pod = group["template"]["spec"]
        sizes = {each["name"]: each.get("emptyDir", {}).get("sizeLimit", "0") for each in pod.get("volumes", [])}
        mounts = pod["containers"][0].get("volumeMounts", [])
        shared = [sizes.get(each["name"], "0") for each in mounts if each["mountPath"] == "/dev/shm"]
        if not shared or not store or store > parse_quantity(shared[0]):
            yield f"{name}: object-store-memory ({store}) must be given and fit into /dev/shm"
    if ray["kind"] == "RayJob":
        yield from _job(ray["spec"])


def _version(version: str) -> Iterator[str]:
    try:
        if Version(version) < Version("2.52.0"):
            yield f"rayVersion: token authentication needs 2.52.0, got {version}"
    except InvalidVersion:
        yield f"rayVersion: {version!r} is no version"
    if version != pinned("ray"):
        yield f"rayVersion {version} is not the pinned {pinned('ray')}"


def _autoscaler_token(spec: Object) -> Iterator[str]:
    """Only the autoscaler speaks to the Kubernetes API, so it alone has a token, at the place where Ray reads it."""
    volumes = {each["name"]: each for each in spec["headGroupSpec"]["template"]["spec"].get("volumes", [])}
    mounts = spec.get("autoscalerOptions", {}).get("volumeMounts", [])
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"autoscalerOptions.volumeMounts: the head has no volume {mount['name']!r}"
    tokens = {name for name, volume in volumes.items() if _holds_token(volume)}
    has_token = any(mount["name"] in tokens and mount["mountPath"] == _TOKEN_FOLDER for mount in mounts)
    if has_token is not bool(spec.get("enableInTreeAutoscaling")):
        yield f"autoscaler: its token belongs to {_TOKEN_FOLDER}"
    if tokens and not spec.get("enableInTreeAutoscaling"):
        yield "head: it has a token of Kubernetes that no process needs"
    yield from (f"autoscaler: {each}" for each in _resources(spec.get("autoscalerOptions", {}).get("resources", {})))


def _holds_token(volume: Object) -> bool:
    return any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))


def _job(spec: Object) -> Iterator[str]:
    try:
        if not isinstance(yaml.safe_load(spec.get("runtimeEnvYAML", "{}")), dict):
            yield "runtimeEnvYAML: it is no mapping"
    except yaml.YAMLError as error:
        yield f"runtimeEnvYAML: it is no YAML: {error}"
    waits: dict[str, dict[str, int]] = {}
    for rule in spec.get("deletionStrategy", {}).get("deletionRules", []):
        condition = rule["condition"]
        status = condition.get("jobStatus") or f"deployment {condition.get('jobDeploymentStatus')}"
        waits.setdefault(status, {})[rule["policy"]] = condition.get("ttlSeconds", 0)
    for status, by_policy in waits.items():
        in_order = [by_policy[policy] for policy in _DELETED_FIRST if policy in by_policy]
        if in_order != sorted(in_order):
            yield f"deletionStrategy: when {status}, what is deleted first has the longer ttlSeconds"


def _budget(objects: list[Object], ray: Object) -> Iterator[str]:
    """Evicting a pod that two budgets select fails, and one budget must not count two clusters' heads."""
    head = {**cluster_spec(ray)["headGroupSpec"]["template"]["metadata"]["labels"], "ray.io/node-type": "head"}
    budgets = [each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    if len(budgets) != 1:
        yield f"{len(budgets)} disruption budgets, and there is one head"
    for budget in budgets:
        if not budget["selector"]["matchLabels"].items() <= head.items():
            yield "the disruption budget does not select the head"


def pinned(package: str) -> str:
    """Return the version of a package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.lower().startswith(f"{package}==")]
    return version
