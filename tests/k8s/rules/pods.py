"""What we ask of one pod by itself: its variables, the folders that Ray and Dray use, its drain, what it refers to."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.k8s.manifests import ROOT, Object, name_of
from tests.k8s.rules import known

_DECIMAL = ("_S", "_s", "_ms", "_MS", "_SECONDS", "_TIMEOUT")
_YES_OR_NO = {"HF_HUB_OFFLINE", "RAY_USAGE_STATS_ENABLED", "HF_HUB_DISABLE_TELEMETRY"}
_IN_EVERY_NAMESPACE = "kube-root-ca.crt"


def problems_with(spec: Object, there: list[Object]) -> Iterator[str]:
    """Yield the problems of a pod; `there` are the objects that it may refer to."""
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    volumes = {each["name"]: each for each in spec.get("volumes", [])}
    for container in containers:
        found = (*of_container(container, volumes), *_container(container, volumes), *_drain(container, spec))
        yield from (f"container {container['name']}: {problem}" for problem in found)
    names = {name_of(each) for each in there} | {f"Secret/{name}" for name in known.SECRETS}
    yield from (f"refers to {name}, which is nowhere" for name in sorted({*_references(spec)} - names))


def of_container(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    """Yield the problems of a container's variables and of the folders that they name."""
    yield from variables_in(container.get("env", []))
    # The root cannot be written to, so HOME and /tmp are volumes that can be, and models lie in a mount.
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


def _references(spec: Object) -> Iterator[str]:
    """Yield the name of each object that a pod refers to."""
    if "serviceAccountName" in spec:
        yield f"ServiceAccount/{spec['serviceAccountName']}"
    if "priorityClassName" in spec:
        yield f"PriorityClass/{spec['priorityClassName']}"
    for volume in spec.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            yield f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
        for source in (volume, *volume.get("projected", {}).get("sources", [])):
            if source.get("configMap", {}).get("name", _IN_EVERY_NAMESPACE) != _IN_EVERY_NAMESPACE:
                yield f"ConfigMap/{source['configMap']['name']}"
            if "secret" in source:
                yield f"Secret/{source['secret'].get('secretName') or source['secret']['name']}"
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        for each in container.get("envFrom", []):
            yield from (f"Secret/{each[key]['name']}" for key in ("secretRef",) if key in each)
        for each in container.get("env", []):
            if key := each.get("valueFrom", {}).get("secretKeyRef"):
                yield f"Secret/{key['name']}"


def _container(container: Object, volumes: dict[str, Object]) -> Iterator[str]:
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"])
        if volume is None:
            yield f"volumeMounts: no volume is called {mount['name']!r}"
        elif holds_token(volume):
            yield "volumeMounts: a token of Kubernetes, which only the autoscaler needs"
        elif mount["mountPath"] == "/dev/shm" and volume.get("emptyDir", {}).get("medium") != "Memory":
            yield "/dev/shm is no volume in memory"
    for port in container.get("ports", []):
        if known.PORTS.get(port.get("name", "")) != port["containerPort"]:
            yield f"ports: a Ray node has no port {port.get('name')} {port['containerPort']}"


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
