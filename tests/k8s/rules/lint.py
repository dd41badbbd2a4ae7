"""What we and KubeRay's operator (1.7) ask of manifests that are applied together, beyond each object's schema."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from packaging.version import InvalidVersion, Version
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import (
    OVERLAYS,
    ROOT,
    Object,
    cluster_spec,
    groups,
    name_of,
    pod_templates,
    ray_objects,
    render,
)
from tests.k8s.rules import (
    known,
    labels,
    network,
    pods,
    queues,
    reachability,
    references,
    scheduling,
    schemas,
    sizes,
    texts,
)

_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_FILES = {"token", "ca.crt", "namespace"}
_DELETED_FIRST = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
_CLUSTER_WIDE = ("Namespace", "PriorityClass", "ClusterQueue", "ResourceFlavor")


def problems_with(objects: list[Object], ground: list[Object]) -> list[str]:
    """Return the problems of objects that are applied together, over a ground that was applied before.

    Where a schema finds something, nothing else is looked at: the other rules rely on the schemas.
    """
    by_schema = [f"{name_of(each)}: {problem}" for each in objects for problem in schemas.problems_with(each)]
    if by_schema:
        return by_schema
    names = {name_of(each) for each in objects}
    there = [*objects, *(each for each in ground if name_of(each) not in names)]
    found = [*_names(objects), *network.problems_with(objects, ground), *queues.problems_with(objects, there)]
    found += [*_reachable(objects, there), *references.problems_with_shared(objects, there)]
    config_maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    for each in objects:
        found += [f"{name_of(each)}: {problem}" for problem in schemas.problems_with_ours(each["kind"], each)]
        for name, template in pod_templates(each):
            found += [f"{name_of(each)} {name}: {problem}" for problem in _pod(each, name, template, there)]
    for each in config_maps.values():
        for name, text in each["data"].items():
            if name.endswith(".yaml"):
                found += [f"{name_of(each)}: {problem}" for problem in texts.problems_with_configuration(name, text)]
    for ray in ray_objects(objects):
        problems = [
            *_ray(ray, there),
            *_budget(objects, ray),
            *sizes.problems_with(ray, sizes.config_of(ray, config_maps)),
        ]
        if ray["kind"] == "RayJob":
            problems += texts.problems_with_job(ray, config_maps)
            problems += texts.problems_with_output(ray, sizes.config_of(ray, config_maps))
        if ray["kind"] == "RayService":
            problems += texts.problems_with_service(ray)
        found += [f"{name_of(ray)}: {problem}" for problem in problems]
    return found


@cache
def _all_overlays() -> tuple[Object, ...]:
    return tuple(each for folder in OVERLAYS for each in render(folder))


def _reachable(objects: list[Object], there: list[Object]) -> Iterator[str]:
    """Policies of the ground against the pods of all overlays, or pods of an overlay against the ground's policies."""
    policies = [each for each in there if each["kind"] == "NetworkPolicy"]
    if any(each["kind"] == "NetworkPolicy" for each in objects):
        yield from reachability.problems_with(policies, [*labels.pods_of([*there, *_all_overlays()])])
    elif policies and any(pod_templates(each) for each in objects):
        of_ours = reachability.problems_with(policies, [*labels.pods_of(objects)])
        yield from (problem for problem in of_ours if "selects no pod" not in problem)


def _names(objects: list[Object]) -> Iterator[str]:
    seen = [name_of(each) for each in objects]
    yield from (f"{name}: there twice" for name in sorted({name for name in seen if seen.count(name) > 1}))
    for each in objects:
        namespace = each["metadata"].get("namespace")
        if (namespace is not None) == (each["kind"] in _CLUSTER_WIDE):
            yield f"{name_of(each)}: {'has no' if namespace is None else 'has'} namespace"
        elif namespace not in (None, "dray"):
            yield f"{name_of(each)}: everything is in the namespace dray, not in {namespace!r}"


def _pod(owner: Object, name: str, template: Object, there: list[Object]) -> Iterator[str]:
    spec = template["spec"]
    yield from schemas.problems_with_ours("Pod", spec)
    yield from references.problems_with(spec, there)
    options = cluster_spec(owner).get("autoscalerOptions") if name == "head" else None
    beside = [] if options is None else [{"name": "autoscaler", **options}]
    yield from pods.problems_with(spec, beside)
    yield from scheduling.problems_with_pod(template)
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        yield from (f"container {container['name']}: {problem}" for problem in _container(container, volumes))
    memory = parse_quantity(spec["containers"][0].get("resources", {}).get("limits", {}).get("memory", "0"))
    if name in sizes.LEAST_GIB and memory < sizes.LEAST_GIB[name] * 2**30:
        yield f"{memory} bytes of memory, and its program takes {sizes.LEAST_GIB[name]} GiB"


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
    for port in container.get("ports", []):
        if known.PORTS.get(port.get("name", "")) != port["containerPort"]:
            yield f"ports: a Ray node has no port {port.get('name')} {port['containerPort']}"


def _resources(resources: Object) -> Iterator[str]:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in sorted(set(requests) ^ set(limits)):
        yield f"resources: {name} is only in {'requests' if name in requests else 'limits'}"
    for name in sorted(set(requests) & set(limits)):
        if parse_quantity(requests[name]) != parse_quantity(limits[name]):
            yield f"resources: the request of {name} is not its limit"
        if name not in known.RESOURCES or parse_quantity(requests[name]) <= 0:
            yield f"resources: no node has {requests[name]} of {name}"


def _ray(ray: Object, there: list[Object]) -> Iterator[str]:
    spec = cluster_spec(ray)
    yield from schemas.problems_with_ours("Cluster", spec)
    yield from _version(spec.get("rayVersion", ""))
    yield from _autoscaler(spec)
    priorities = {each["metadata"]["name"]: each["value"] for each in there if each["kind"] == "PriorityClass"}
    yield from scheduling.problems_with_cluster(ray, priorities)
    names = [group["groupName"] for group in spec.get("workerGroupSpecs", [])]
    if len(names) > len(set(names)):
        yield f"workerGroupSpecs: two groups have one name: {', '.join(names)}"
    for group in spec.get("workerGroupSpecs", []):
        low, high, replicas = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1), group.get("replicas", 0)
        if not low <= replicas <= high:
            yield f"{group['groupName']}: replicas {replicas} is not between minReplicas {low} and maxReplicas {high}"
    for name, group in groups(ray):
        yield from (f"{name}: {problem}" for problem in _group(group))
    present = {each["name"] for each in spec["headGroupSpec"]["template"]["spec"]["containers"][0].get("ports", [])}
    if missing := known.PORTS.keys() - {"metrics"} - present:
        yield f"head: its ports {', '.join(sorted(missing))} are not named, so that Services and Prometheus miss them"
    if spec["headGroupSpec"]["rayStartParams"].get("dashboard-host") != "0.0.0.0":
        yield "head: the dashboard takes jobs from submitters, so its dashboard-host is 0.0.0.0"
    if ray["kind"] == "RayJob":
        yield from _job(ray["spec"])
    if ray["kind"] == "RayService" and not ray["spec"].get("excludeHeadPodFromServeSvc"):
        yield "excludeHeadPodFromServeSvc: a head without CPUs has no proxy that would answer"


def _group(group: Object) -> Iterator[str]:
    for name in sorted(group.get("rayStartParams", {}).keys() - known.start_parameters()):
        yield f"rayStartParams: `ray start` has no {name}"
    given = group.get("rayStartParams", {}).get("object-store-memory", "0")
    store = int(given) if given.isdigit() else 0
    pod = group["template"]["spec"]
    volumes = {each["name"]: each.get("emptyDir", {}).get("sizeLimit", "0") for each in pod.get("volumes", [])}
    mounts = pod["containers"][0].get("volumeMounts", [])
    shared = [volumes.get(each["name"], "0") for each in mounts if each["mountPath"] == "/dev/shm"]
    if parse_quantity(volumes.get("tmp", "0")) < 2**30:
        yield f"/tmp: Ray's logs and its objects that do not fit into memory take more than {volumes.get('tmp')}"
    if not shared or not store or store > parse_quantity(shared[0]):
        yield f"object-store-memory ({given}) must be given in bytes and fit into /dev/shm"


def _version(version: str) -> Iterator[str]:
    try:
        if Version(version) < Version("2.52.0"):
            yield f"rayVersion: token authentication needs 2.52.0, got {version}"
    except InvalidVersion:
        yield f"rayVersion: {version!r} is no version"
    if version != pinned("ray"):
        yield f"rayVersion {version} is not the pinned {pinned('ray')}"


def _autoscaler(spec: Object) -> Iterator[str]:
    """Only the autoscaler speaks to the Kubernetes API, so it alone has a token, at the place where Ray reads it."""
    volumes = {each["name"]: each for each in spec["headGroupSpec"]["template"]["spec"].get("volumes", [])}
    options = spec.get("autoscalerOptions", {})
    mounts = options.get("volumeMounts", [])
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"autoscalerOptions.volumeMounts: the head has no volume {mount['name']!r}"
    tokens = {name for name, volume in volumes.items() if _holds_token(volume)}
    has_token = any(mount["name"] in tokens and mount["mountPath"] == _TOKEN_FOLDER for mount in mounts)
    if has_token is not bool(spec.get("enableInTreeAutoscaling")):
        yield f"autoscaler: its token belongs to {_TOKEN_FOLDER}"
    if tokens and not spec.get("enableInTreeAutoscaling"):
        yield "head: it has a token of Kubernetes that no process needs"
    for name in tokens:
        if (files := set(_token_files(volumes[name]))) != _TOKEN_FILES:
            yield f"autoscaler: its token's volume has the files {sorted(files)}, and Ray reads {sorted(_TOKEN_FILES)}"
    if options:
        container = {"name": "autoscaler", **options}
        yield from (
            f"autoscaler: {each}"
            for each in [*_resources(options.get("resources", {})), *pods.of_container(container, volumes)]
        )


def _holds_token(volume: Object) -> bool:
    return any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))


def _token_files(volume: Object) -> Iterator[str]:
    for source in volume["projected"]["sources"]:
        if "serviceAccountToken" in source:
            yield source["serviceAccountToken"]["path"]
        for kind in ("configMap", "downwardAPI"):
            yield from (item["path"] for item in source.get(kind, {}).get("items", []))


def _job(spec: Object) -> Iterator[str]:
    if spec.get("backoffLimit", 0) < 1:
        yield "backoffLimit: a run whose cluster is lost would not be tried again"
    waits: dict[str, dict[str, int]] = {}
    for rule in spec.get("deletionStrategy", {}).get("deletionRules", []):
        condition = rule["condition"]
        status = condition.get("jobStatus") or f"deployment {condition.get('jobDeploymentStatus')}"
        waits.setdefault(status, {})[rule["policy"]] = condition.get("ttlSeconds", 0)
    for status, by_policy in waits.items():
        in_order = [by_policy[policy] for policy in _DELETED_FIRST if policy in by_policy]
        if in_order != sorted(in_order):
            yield f"deletionStrategy: when {status}, what is deleted first has the longer ttlSeconds"
    ended = {"SUCCEEDED", "FAILED", "deployment Failed"}
    deleting = {status for status, by_policy in waits.items() if {"DeleteCluster", "DeleteSelf"} & by_policy.keys()}
    if waits and not ended <= deleting:
        yield f"deletionStrategy: no rule ends the cluster when {', '.join(sorted(ended - deleting))}"


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
