"""What we ask of one pod by itself: its variables, its volumes, its resources, where it may run and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import ROOT, Object
from tests.k8s.rules import known

_DECIMAL = ("_S", "_s", "_ms", "_MS", "_SECONDS", "_TIMEOUT")
_YES_OR_NO = {"HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED", "HF_HUB_DISABLE_TELEMETRY"}
_USER = 1000  # of the image
_MODES = (0o440, 0o640)  # of a secret's files


def problems_with(spec: Object, beside: list[Object]) -> Iterator[str]:
    """Yield the problems of a pod; `beside` are containers that the operator adds to it (the autoscaler)."""
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    volumes = {each["name"]: each for each in spec.get("volumes", [])}
    for container in containers:
        found = (
            *of_container(container, volumes),
            *_container(container, volumes),
            *_drain(container, spec),
            *_probes(container),
            *_image(container),
        )
        yield from (f"container {container['name']}: {problem}" for problem in found)
    mounted = {mount["name"] for each in [*containers, *beside] for mount in each.get("volumeMounts", [])}
    for name in sorted(volumes.keys() - mounted):
        yield f"volumes: no container mounts {name!r}"
    for volume in volumes.values():
        yield from (f"volume {volume['name']!r}: {problem}" for problem in _volume(volume))
    yield from _disk(spec, [*spec["containers"], *beside])
    yield from _enums(spec)
    context = spec["securityContext"]
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        if context.get(field, _USER) != _USER:
            yield f"securityContext.{field}: the image's user and its volumes are {_USER}, not {context[field]}"


def of_container(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    """Yield the problems of a container's variables and of the folders that they name."""
    yield from variables_in(container.get("env", []))
    for source in container.get("envFrom", []):
        if not source.get("secretRef", source.get("configMapRef", {})).get("optional"):
            yield "envFrom: must be optional, as a cluster with workload identity has no such secret"
    for each in container.get("env", []):
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path not in (None, *known.POD_FIELDS):
            yield f"env: a pod has no field {path} that a variable may have"
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"], {})
        if mount["mountPath"] not in known.MOUNTS:
            yield f"volumeMounts: nothing looks for {mount['mountPath']}"
        if "subPath" in mount and volume.keys() & {"secret", "configMap"}:
            yield f"volumeMounts: {mount['mountPath']} would not follow a change, because of subPath"
    yield from _homes(container, volumes)


def variables_in(env: list[Object]) -> Iterator[str]:
    """Yield the problems of environment variables: a name that no program reads, a value that it would not take."""
    for each in env:
        name, value = each["name"], str(each.get("value", ""))
        if name not in known.variables():
            yield f"env: no program reads a variable {name}"
        elif name in _YES_OR_NO and value not in ("0", "1"):
            yield f"env: {name} is 0 or 1, not {value!r}"
        elif name.startswith("RAY_") and name.endswith(_DECIMAL) and not value.replace(".", "", 1).isdigit():
            yield f"env: {name} is a number, not {value!r}"


def resources_of(resources: Object) -> Iterator[str]:
    """Yield the problems of what a container asks for and may have at most, which are the same."""
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for name in sorted(set(requests) ^ set(limits)):
        yield f"resources: {name} is only in {'requests' if name in requests else 'limits'}"
    for name in sorted(set(requests) & set(limits)):
        if parse_quantity(requests[name]) != parse_quantity(limits[name]):
            yield f"resources: the request of {name} is not its limit"
        if name not in known.RESOURCES or parse_quantity(requests[name]) <= 0:
            yield f"resources: no node has {requests[name]} of {name}"


def holds_token(volume: Object) -> bool:
    """Tell whether a volume has a token of Kubernetes."""
    return any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))


def mount_at(container: Object, path: str) -> Object | None:
    """Return the mount of a container that a path lies in; the deepest one, if several are above it."""
    above = [PurePosixPath(path), *PurePosixPath(path).parents]
    mounts: list[Object] = [
        each for each in container.get("volumeMounts", []) if PurePosixPath(each["mountPath"]) in above
    ]
    return max(mounts, key=lambda each: len(each["mountPath"]), default=None)


def _container(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    yield from resources_of(container.get("resources", {}))
    in_memory = 0
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"])
        if volume is None:
            yield f"volumeMounts: no volume is called {mount['name']!r}"
        elif holds_token(volume):
            yield "volumeMounts: a token of Kubernetes, which only the autoscaler needs"
        elif volume.get("emptyDir", {}).get("medium") == "Memory":
            in_memory += int(parse_quantity(volume["emptyDir"].get("sizeLimit", "0")))
    memory = container.get("resources", {}).get("limits", {}).get("memory")
    if memory is not None and 2 * in_memory > parse_quantity(memory):
        yield f"volumes in memory may take {in_memory} bytes of the {memory} that the container has: more than half"
    for port in container.get("ports", []):
        if known.PORTS.get(port.get("name", "")) != port["containerPort"]:
            yield f"ports: a Ray node has no port {port.get('name')} {port['containerPort']}"


def _homes(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    """The root cannot be written to, so HOME and /tmp are volumes that can be, and models lie in a mount."""
    env = {each["name"]: str(each.get("value", "")) for each in container.get("env", [])}
    for what, path in (("HOME", env.get("HOME", "/root")), ("/tmp", "/tmp")):
        mount = mount_at(container, path)
        if mount is None or mount.get("readOnly") or "emptyDir" not in volumes.get(mount["name"], {}):
            yield f"{what} is {path}, where nothing can be written"
    if "HF_HOME" in env:
        mount = mount_at(container, env["HF_HOME"])
        if env["HF_HOME"] != known.HF_HOME:
            yield f"HF_HOME is {known.HF_HOME} in all pods, so that one fetches what others read; not {env['HF_HOME']}"
        if mount is None or mount["mountPath"] == "/":
            yield f"HF_HOME is {env['HF_HOME']}, where nothing is mounted"
        elif env.get("HF_HUB_OFFLINE") == "1" and not mount.get("readOnly"):
            yield f"HF_HOME: {mount['mountPath']} is shared by all pods, and only the one that fetches may write to it"
        elif env.get("HF_HUB_OFFLINE") != "1" and mount.get("readOnly"):
            yield f"HF_HOME: {mount['mountPath']} is read-only, and HF_HUB_OFFLINE is not set: models would be fetched"
    for mount in container.get("volumeMounts", []):
        if (
            mount["mountPath"] == "/dev/shm"
            and volumes.get(mount["name"], {}).get("emptyDir", {}).get("medium") != "Memory"
        ):
            yield "/dev/shm is no volume in memory"


def _image(container: Object) -> Iterator[str]:
    if "/" not in container["image"] and container.get("imagePullPolicy") == "Always":
        yield f"imagePullPolicy: {container['image']} is in no registry, so that it can only be there already"


def _volume(volume: Object) -> Iterator[str]:
    secret = volume.get("secret")
    if secret is not None:
        mode, keys = secret.get("defaultMode", 0o644), known.SECRETS.get(secret["secretName"])
        if mode not in _MODES:
            yield f"its mode {mode:o} (octal) must be 440 or 640, so that our group reads it and no other does"
        if secret.get("optional"):
            yield f"the Secret {secret['secretName']} must be there: without its files the endpoint does not begin"
        for item in secret.get("items", []):
            if keys is not None and item["key"] not in keys:
                yield f"the Secret {secret['secretName']} has no key {item['key']!r}"


def _drain(container: Object, spec: Object) -> Iterator[str]:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if command is None:
        return
    if not (ROOT / command[1].removeprefix("/opt/dray/")).is_file():
        yield f"preStop: {command[1]} is not in the repository"
    if not command[2].isdigit():
        yield f"preStop: {command[2]!r} is no number of seconds"
    elif int(command[2]) >= spec.get("terminationGracePeriodSeconds", 30):
        yield "preStop: may take as long as the pod has, terminationGracePeriodSeconds"


def _probes(container: Object) -> Iterator[str]:
    """A probe of ours would replace KubeRay's, so it must ask a port that a Ray node listens on."""
    open_ports = {*known.PORTS.values(), *known.PORTS, known.AGENT_PORT}
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name, {})
        port = probe.get("httpGet", probe.get("tcpSocket", {})).get("port")
        if port is not None and port not in open_ports:
            yield f"{name}: nothing listens on port {port}"


def _disk(spec: Object, containers: list[Object]) -> Iterator[str]:
    """Disk is asked for, as a node that runs out of it evicts pods, and holds what the volumes may take."""
    disks = [each["emptyDir"] for each in spec.get("volumes", []) if "emptyDir" in each]
    volumes = sum(parse_quantity(each.get("sizeLimit", "0")) for each in disks if each.get("medium") != "Memory")
    asked = [each.get("resources", {}).get("limits", {}).get("ephemeral-storage") for each in containers]
    room = sum(parse_quantity(each) for each in asked if each is not None)
    if volumes > room:
        yield f"ephemeral-storage: volumes on the node's disk may take {volumes} bytes, and the pod asks for {room}"


def _enums(value: Any) -> Iterator[str]:
    """Words of which Kubernetes knows a few, which the schemas have as any text."""
    if isinstance(value, list):
        for item in value:
            yield from _enums(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and item not in known.ENUMS.get(key, {item}):
                yield f"{key}: {item!r} is not one of {', '.join(sorted(known.ENUMS[key]))}"
            yield from _enums(item)
