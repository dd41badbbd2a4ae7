"""What we ask of every manifest beyond what Kubernetes and KubeRay take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s import lint_network
from tests.k8s.manifests import ROOT, cluster_spec, groups, name_of, pod_templates, ray_object

Object = dict[str, Any]
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|(ACCESS|API|PRIVATE)_?KEY")
_OUR_SECRETS = {"dray-object-store", "dray-hub", "dray-api-keys", "dray-redis"}  # made by the reader of k8s/README.md
_IN_EVERY_NAMESPACE = "kube-root-ca.crt"
_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
GPU = "nvidia.com/gpu"
GPU_KIND = "nvidia.com/gpu.product"
_VERSION = re.compile(r"\d+\.\d+\.\d+([-.]\w+)*")


def problems_with(objects: list[Object], ground: list[Object]) -> list[str]:
    """Of what is applied together, over what was applied before."""
    found = [*_names(objects), *_priorities(objects)]
    for each in objects:
        for name, template in pod_templates(each):
            found += [f"{name_of(each)} {name}: {problem}" for problem in _pod(template)]
            found += [
                f"{name_of(each)} {name}: {problem}" for problem in _references(template["spec"], objects, ground)
            ]
    ray = ray_object(objects)
    if ray is not None:
        found += [f"{name_of(ray)}: {problem}" for problem in [*_ray(ray), *_budget(objects, ray)]]
    found += lint_network.problems_with(objects, ground)
    return found


def _names(objects: list[Object]) -> Iterator[str]:
    seen = [name_of(each) for each in objects]
    yield from (f"{name}: there twice" for name in sorted({name for name in seen if seen.count(name) > 1}))
    for each in objects:
        has_namespace = "namespace" in each["metadata"]
        if has_namespace == (each["kind"] in ("Namespace", "PriorityClass")):
            yield f"{name_of(each)}: {'has' if has_namespace else 'has no'} namespace"


def _priorities(objects: list[Object]) -> Iterator[str]:
    for each in objects:
        if each["kind"] == "PriorityClass" and each.get("preemptionPolicy") != "Never":
            yield f"{name_of(each)}: preemptionPolicy is not Never: its pods push those of others out"


def _pod(template: Object) -> Iterator[str]:
    spec = template["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    yield from _pod_security(spec)
    if spec.get("enableServiceLinks", True):
        yield "enableServiceLinks is not false: services' names become variables DRAY_..., which the commands refuse"
    for volume in volumes.values():
        if "emptyDir" in volume and "sizeLimit" not in (volume["emptyDir"] or {}):
            yield f"volume {volume['name']}: an emptyDir without sizeLimit"
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        where = f"container {container['name']}"
        yield from (f"{where}: {problem}" for problem in _container(container, volumes, spec))


def _pod_security(spec: Object) -> Iterator[str]:
    """The restricted pod security standard, and who the pod is."""
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield "securityContext: runAsNonRoot, and a runAsUser that is not 0"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "securityContext: seccompProfile RuntimeDefault"
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field}: not in a restricted namespace"
    allowed = {
        "name",
        "emptyDir",
        "configMap",
        "secret",
        "persistentVolumeClaim",
        "projected",
        "downwardAPI",
        "csi",
        "ephemeral",
    }
    for volume in spec.get("volumes", []):
        if extra := set(volume) - allowed:
            yield f"volume {volume['name']}: {', '.join(extra)} is not in a restricted namespace"
    if spec.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken is not false: the autoscaler mounts its token itself, nobody else needs one"


def _container_security(context: Object) -> Iterator[str]:
    if context.get("allowPrivilegeEscalation") is not False:
        yield "securityContext: allowPrivilegeEscalation is not false"
    if context.get("capabilities", {}).get("drop") != ["ALL"] or context.get("capabilities", {}).get("add"):
        yield "securityContext: capabilities must be dropped, all of them"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "securityContext: readOnlyRootFilesystem is not true"
    if context.get("privileged") or context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield "securityContext: privileged or root"


def _container(container: Object, volumes: Object, spec: Object) -> Iterator[str]:
    yield from _container_security(container.get("securityContext", {}))
    yield from _image(container["image"])
    yield from _resources(container.get("resources", {}))
    mounts = container.get("volumeMounts", [])
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"volumeMounts: no volume is called {mount['name']!r}"
        elif _holds_token(volumes[mount["name"]]):
            yield "volumeMounts: a token of Kubernetes, which only the autoscaler needs"
    paths = [mount["mountPath"] for mount in mounts]
    if len(paths) != len(set(paths)):
        yield "volumeMounts: two on one path"
    for variable in container.get("env", []):
        if _SECRET.search(variable["name"].upper()) and variable.get("value"):
            yield f"env {variable['name']}: a secret in plain text; refer to a Secret"
    for port in container.get("ports", []):
        if "hostPort" in port:
            yield "ports: a hostPort"
    memory = container.get("resources", {}).get("limits", {}).get("memory")
    in_memory = sum(
        (
            _size(volumes[mount["name"]]["emptyDir"].get("sizeLimit", "0"))
            for mount in mounts
            if _is_memory(volumes, mount)
        ),
        Decimal(0),
    )
    if memory is not None and 2 * in_memory > _size(memory):
        yield f"volumes in memory may take {in_memory:.0f} bytes of the {memory} that the container has: more than half"
    if GPU in container.get("resources", {}).get("limits", {}) and not any(
        toleration.get("key") == GPU for toleration in spec.get("tolerations", [])
    ):
        yield f"asks for {GPU} and does not tolerate its taint"
    if GPU in container.get("resources", {}).get("limits", {}) and not spec.get("nodeSelector", {}).get(GPU_KIND):
        yield f"asks for a GPU and does not say which: nodeSelector {GPU_KIND}"
    yield from _drain(container, spec)


def _is_memory(volumes: Object, mount: Object) -> bool:
    return (volumes.get(mount["name"], {}).get("emptyDir") or {}).get("medium") == "Memory"


def _image(image: str) -> Iterator[str]:
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not digest.startswith("sha256:") and not _VERSION.fullmatch(tag):
        yield f"image {image}: no tag that stays (a whole version), nor a digest"


def _resources(resources: Object) -> Iterator[str]:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in ("cpu", "memory"):
        if name not in requests or name not in limits:
            yield f"resources: request and limit of {name}"
    for name in sorted(set(requests) | set(limits)):
        if name in requests and name in limits and _size(requests[name]) != _size(limits[name]):
            yield f"resources: the request of {name} is not its limit"
        elif (name in requests) != (name in limits):
            yield f"resources: {name} is only in {'requests' if name in requests else 'limits'}"


def _drain(container: Object, spec: Object) -> Iterator[str]:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if command is None:
        return
    script = command[1].removeprefix("/opt/dray/")
    if not (ROOT / script).is_file():
        yield f"preStop: {command[1]} is not in the repository"
    if int(command[2]) >= spec.get("terminationGracePeriodSeconds", 30):
        yield "preStop: may take as long as the pod has, terminationGracePeriodSeconds"


def _references(spec: Object, objects: list[Object], ground: list[Object]) -> Iterator[str]:
    there = {name_of(each) for each in [*objects, *ground]}
    wanted = []
    if "serviceAccountName" in spec:
        wanted.append(f"ServiceAccount/{spec['serviceAccountName']}")
    if "priorityClassName" in spec:
        wanted.append(f"PriorityClass/{spec['priorityClassName']}")
    for volume in spec.get("volumes", []):
        if "configMap" in volume:
            wanted.append(f"ConfigMap/{volume['configMap']['name']}")
        if "persistentVolumeClaim" in volume:
            wanted.append(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
        if "secret" in volume:
            wanted.append(f"Secret/{volume['secret']['secretName']}")
        for source in volume.get("projected", {}).get("sources", []):
            if source.get("configMap", {}).get("name", _IN_EVERY_NAMESPACE) != _IN_EVERY_NAMESPACE:
                wanted.append(f"ConfigMap/{source['configMap']['name']}")
            if "secret" in source:
                wanted.append(f"Secret/{source['secret']['name']}")
    for container in spec["containers"]:
        sources = [each.get("valueFrom", {}).get("secretKeyRef") for each in container.get("env", [])]
        sources += [each.get("secretRef") for each in container.get("envFrom", [])]
        wanted += [f"Secret/{source['name']}" for source in sources if source]
    for name in wanted:
        kind, _, called = name.partition("/")
        if name not in there and not (kind == "Secret" and called in _OUR_SECRETS):
            yield f"refers to {name}, which is nowhere"


def _ray(ray: Object) -> Iterator[str]:
    spec = cluster_spec(ray)
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "authOptions: mode token, written out: without it Ray takes code from everybody"
    if spec.get("rayVersion") != pinned("ray"):
        yield f"rayVersion {spec.get('rayVersion')} is not the pinned {pinned('ray')}"
    if spec["headGroupSpec"].get("rayStartParams", {}).get("num-cpus") != "0":
        yield 'head: rayStartParams num-cpus "0"; work on the head takes the cluster down with it'
    if spec.get("enableInTreeAutoscaling"):
        options = spec.get("autoscalerOptions", {})
        if options.get("version") != "v2":
            yield "autoscalerOptions: version v2, written out"
        volumes = {volume["name"] for volume in spec["headGroupSpec"]["template"]["spec"].get("volumes", [])}
        for mount in options.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"autoscalerOptions.volumeMounts: the head has no volume {mount['name']!r}"
        yield from (f"autoscaler: {problem}" for problem in _container_security(options.get("securityContext", {})))
        yield from (f"autoscaler: {problem}" for problem in _resources(options.get("resources", {})))
    yield from _tokens(spec)
    for name, group in groups(ray):
        store = int(group.get("rayStartParams", {}).get("object-store-memory", 0))
        volumes = {volume["name"]: volume for volume in group["template"]["spec"].get("volumes", [])}
        mounts = group["template"]["spec"]["containers"][0].get("volumeMounts", [])
        shared = [volumes[each["name"]]["emptyDir"] for each in mounts if each["mountPath"] == "/dev/shm"]
        if not shared or not store or store > _size(shared[0].get("sizeLimit", "0")):
            yield f"{name}: object-store-memory ({store}) must be given and fit into /dev/shm"
        container = group["template"]["spec"]["containers"][0]
        if name != "head" and "preStop" not in container.get("lifecycle", {}):
            yield f"{name}: no preStop takes its node out of use before a pod ends (drain.sh)"
    if (
        ray["kind"] == "RayJob"
        and "submitterPodTemplate" not in ray["spec"]
        and ray["spec"].get("submissionMode") == "K8sJobMode"
    ):
        yield "submitterPodTemplate: the operator's own is not allowed in a restricted namespace"


def _tokens(spec: Object) -> Iterator[str]:
    """Only the autoscaler speaks to the Kubernetes API, so it alone has a token, at the place where Ray reads it."""
    volumes = spec["headGroupSpec"]["template"]["spec"].get("volumes", [])
    tokens = {volume["name"] for volume in volumes if _holds_token(volume)}
    mounts = spec.get("autoscalerOptions", {}).get("volumeMounts", [])
    has_token = any(mount["name"] in tokens and mount["mountPath"] == _TOKEN_FOLDER for mount in mounts)
    if has_token is not bool(spec.get("enableInTreeAutoscaling")):
        yield f"autoscaler: its token belongs to {_TOKEN_FOLDER}"
    if tokens and not spec.get("enableInTreeAutoscaling"):
        yield "head: a token of Kubernetes for nobody"


def _holds_token(volume: Object) -> bool:
    return any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))


def _budget(objects: list[Object], ray: Object) -> Iterator[str]:
    """Evicting a pod that two budgets select fails, and one budget must not count two clusters' heads."""
    head = {**cluster_spec(ray)["headGroupSpec"]["template"]["metadata"]["labels"], "ray.io/node-type": "head"}
    budgets = [each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    if len(budgets) != 1:
        yield f"{len(budgets)} disruption budgets, and there is one head"
        return
    (budget,) = budgets
    labels = budget["selector"]["matchLabels"]
    if not labels.items() <= head.items():
        yield "the disruption budget does not select the head"
    if "app.kubernetes.io/instance" not in labels or labels.get("ray.io/node-type") != "head":
        yield "the disruption budget selects more than this cluster's head"
    if budget.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "the disruption budget keeps a head that is not healthy on its node: unhealthyPodEvictionPolicy"
    if not isinstance(budget.get("minAvailable"), int) or "maxUnavailable" in budget:
        yield "the disruption budget must say minAvailable as a number: KubeRay's pods have no scale"


def pinned(package: str) -> str:
    """Its version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (version,) = [line.partition("==")[2] for line in lines if line.lower().startswith(f"{package}==")]
    return version


def _size(quantity: Any) -> Decimal:
    return parse_quantity(quantity)
