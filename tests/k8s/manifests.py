"""The objects that `kubectl apply -k` would send: the folders of k8s/, rendered by kustomize, and their parts."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
GROUND = (  # once for a namespace
    "base/namespace",
    "base/models",
    "base/queues",
    "base/prepull",
    "base/monitoring",
    "base/monitoring-endpoint",
)
LARGE = ("overlays/job-64",)  # what needs it
LARGE_GROUND = "base/namespace-64"  # in the place of base/namespace
OVERLAYS = tuple(f"overlays/{path.name}" for path in sorted((K8S / "overlays").iterdir()))
FOLDERS = (*GROUND, LARGE_GROUND, *OVERLAYS)
Object = dict[str, Any]
IMAGE_HOME = "/opt/dray"  # where the image has the repository
CONFIG_HOME = "/etc/dray"  # where pods have their ConfigMap

_CLUSTER_SPEC = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
}


class _StrictLoader(yaml.CSafeLoader):
    """A loader that refuses a key that is there twice, as the Kubernetes API does."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> Object:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {sorted(twice)} twice")
    return dict(zip(keys, (loader.construct_object(value, deep=True) for _, value in node.value), strict=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_objects(text: str) -> list[Object]:
    """Return the objects of a YAML file; raise yaml.YAMLError if a key is there twice."""
    return [document for document in yaml.load_all(text, _StrictLoader) if document is not None]


@cache
def rendered(folder: str) -> str:
    """Return what `kubectl kustomize k8s/FOLDER` prints. It needs no cluster and no network."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FileNotFoundError(
            "these tests render k8s/ with `kubectl kustomize`, and there is no kubectl on the PATH: install 1.32 "
            "or later (https://kubernetes.io/docs/tasks/tools)"
        )
    done = subprocess.run([kubectl, "kustomize", str(K8S / folder)], capture_output=True, text=True, timeout=60)
    if done.returncode or done.stderr:
        raise ValueError(f"kubectl kustomize k8s/{folder}: {done.stderr}")
    return done.stdout


def render(folder: str) -> list[Object]:
    """Return the objects of a folder, new ones that a test may change."""
    return load_objects(rendered(folder))


@cache
def all_overlays() -> tuple[Object, ...]:
    """Return the objects of all overlays, which must not be changed."""
    return tuple(each for folder in OVERLAYS for each in made(render(folder)))


def ground(overlay: str = "") -> list[Object]:
    """Return the objects that are there before an overlay is applied, with the large quota where it needs that."""
    large = {LARGE_GROUND: "base/namespace"} if overlay in LARGE else {}
    return [each for folder in GROUND if folder not in large.values() for each in render(folder)] + [
        each for folder in large for each in render(folder)
    ]


def run_config(folder: str) -> Object:
    """Return the configuration of an overlay's run."""
    return dict(yaml.safe_load(of_kind(render(folder), "ConfigMap")["data"]["run.yaml"]))


def serve_config(folder: str) -> Object:
    """Return the configuration of Ray Serve in an overlay's service."""
    return dict(yaml.safe_load(of_kind(render(folder), "RayService")["spec"]["serveConfigV2"]))


def as_here(text: str, config_home: Path) -> str:
    """Return a text of a pod with the paths of this machine."""
    return text.replace(IMAGE_HOME, str(ROOT)).replace(CONFIG_HOME, str(config_home))


def made(objects: list[Object]) -> list[Object]:
    """Return objects and the RayJobs that RayCronJobs among them make, named as KubeRay names them."""
    jobs = []
    for each in objects:
        if each["kind"] == "RayCronJob":
            named = {**each["metadata"], "name": f"{each['metadata']['name']}-29000000"}
            jobs.append({**each, "kind": "RayJob", "metadata": named, "spec": each["spec"]["jobTemplate"]})
    return [*objects, *(job for job in jobs if job not in objects)]


def command_of(job: Object) -> str:
    """Return the command of a RayJob, whatever script runs it."""
    return str(job["spec"]["entrypoint"]).replace(f"/bin/bash {IMAGE_HOME}/k8s/watchdog.sh", "python -m jobs.generate")


def of_kind(objects: list[Object], kind: str) -> Object:
    """Return the only object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def ray_objects(objects: list[Object]) -> list[Object]:
    """Return every RayCluster, RayJob and RayService among objects, and those that they make."""
    return [each for each in made(objects) if each["kind"] in _CLUSTER_SPEC]


def cluster_spec(ray: Object) -> Object:
    """Return the spec of the cluster that a RayCluster, RayJob or RayService describes."""
    for key in _CLUSTER_SPEC[ray["kind"]]:
        ray = ray[key]
    return ray


def groups(ray: Object) -> Iterator[tuple[str, Object]]:
    """Yield the head group and the worker groups, each with its name."""
    spec = cluster_spec(ray)
    yield "head", spec["headGroupSpec"]
    for group in spec.get("workerGroupSpecs", []):
        yield group["groupName"], group


def pod_templates(each: Object) -> Iterator[tuple[str, Object]]:
    """Yield the templates of all pods that an object makes, each with a name for it."""
    if each["kind"] in _CLUSTER_SPEC:
        for name, group in groups(each):
            yield name, group["template"]
        if "submitterPodTemplate" in each["spec"]:
            yield "submitter", each["spec"]["submitterPodTemplate"]
    elif each["kind"] == "Job":
        yield "job", each["spec"]["template"]
    elif each["kind"] == "DaemonSet":
        yield "prepull", each["spec"]["template"]


def name_of(each: Object) -> str:
    """Return the kind and name of an object."""
    return f"{each.get('kind')}/{each.get('metadata', {}).get('name')}"
