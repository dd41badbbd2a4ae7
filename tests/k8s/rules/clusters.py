"""What we and KubeRay's operator ask of a Ray cluster: its version, its autoscaler, its groups, how its job ends."""

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import ROOT, Object, cluster_spec, groups
from tests.k8s.rules import known, pods, schemas
from tests.k8s.rules.pods import holds_token

_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_FILES = {"token", "ca.crt", "namespace"}
_DELETED_FIRST = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


def problems_with(ray: Object, objects: list[Object]) -> Iterator[str]:
    """Yield the problems of a Ray object; `objects` are applied with it."""
    spec = cluster_spec(ray)
    yield from schemas.problems_with_ours("Cluster", spec)
    yield from _version(spec.get("rayVersion", ""))
    yield from _autoscaler(spec)
    yield from _spot_first(spec)
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
    yield from _budget(objects, ray)
    if ray["kind"] == "RayJob":
        yield from _job(ray["spec"])
    steps = ray["spec"].get("upgradeStrategy", {}).get("clusterUpgradeOptions", {})
    if steps.get("stepSizePercent", 0) > steps.get("maxSurgePercent", 100):
        yield "upgradeStrategy: KubeRay refuses a stepSizePercent above maxSurgePercent"
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
    tokens = {name for name, volume in volumes.items() if holds_token(volume)}
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
        yield from (f"autoscaler: {each}" for each in pods.of_container(container, volumes))


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


def _spot_first(spec: Object) -> Iterator[str]:
    """Groups on machines that are taken away are asked first, and let go in the notice that clouds give."""
    by_market: dict[str, list[Object]] = {}
    for group in spec.get("workerGroupSpecs", []):
        by_market.setdefault(group.get("labels", {}).get("ray.io/market-type", ""), []).append(group)
    others = [group.get("priority", 0) for group in by_market.get("on-demand", [])]
    for group in by_market.get("spot", []):
        if others and group.get("priority", 0) <= max(others):
            yield f"{group['groupName']}: its priority is not above that of on-demand nodes, which would be asked first"
        if (seconds := group["template"]["spec"].get("terminationGracePeriodSeconds", 30)) > 120:
            yield f"{group['groupName']}: clouds give 30 to 120 s of notice, and its pods have {seconds}"


def pinned(package: str) -> str:
    """Return the version of a package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.lower().startswith(f"{package}==")]
    return version
