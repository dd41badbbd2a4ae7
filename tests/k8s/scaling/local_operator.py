"""A stand-in for KubeRay's operator whose pods are raylets of this machine, as many as the RayCluster says."""

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import ray
from ray.autoscaler._private.kuberay.autoscaling_config import _get_ray_resources_from_group_spec

from tests.k8s.manifests import Object
from tests.k8s.scaling.fake_kubernetes import FakeKubernetes

psutil = ray._private.utils.psutil  # the copy that comes with Ray
HEAD_POD = "dray-head"
_EVERY_S = 0.3
# Several raylets on one address: what Ray gives fixed ports by default gets free ones.
_FREE_PORTS = ("dashboard-agent-listen-port", "min-worker-port", "max-worker-port", "metrics-export-port")
_NO_WORK = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


class LocalOperator:
    """A context manager that makes and ends pods; all of them are gone when it ends."""

    def __init__(self, kubernetes: FakeKubernetes, address: str, environment: dict[str, str], folder: Path) -> None:
        """Take the address of the GCS and the environment of the cluster's processes."""
        self._kubernetes, self._address, self._environment, self._folder = kubernetes, address, environment, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers, self._ended = itertools.count(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        kubernetes.pods[HEAD_POD] = self._pod(HEAD_POD, "headgroup", "head")
        self.most_workers = 0
        self.broken: dict[str, str] = {}  # pods that ended by themselves, and what they said last

    def __enter__(self) -> Self:
        """Begin to watch the RayCluster."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """End all pods."""
        self._ended.set()
        self._thread.join()
        for process in self._processes.values():
            _end(process)

    def workers(self) -> list[str]:
        """Return the names of the worker pods."""
        with self._kubernetes.lock:
            return [name for name in self._kubernetes.pods if name != HEAD_POD]

    def cpu_seconds(self, pod: str) -> float:
        """Return the CPU seconds of those processes of a pod that still run."""
        seconds = 0.0
        for process in _family(self._processes[pod]):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def kill(self, pod: str) -> None:
        """Kill all processes of a pod, as when its machine is taken away."""
        _end(self._processes[pod])

    def has_work(self, pod: str) -> bool:
        """Tell whether a process of the pod is an actor or does a task: Ray puts that into its title."""
        for process in _family(self._processes[pod]):
            with suppress(psutil.NoSuchProcess):
                name = " ".join(process.cmdline()[:1])
                if name.startswith("ray::") and name not in _NO_WORK:
                    return True
        return False

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._kubernetes.lock:
                for group in self._kubernetes.cluster["spec"]["workerGroupSpecs"]:
                    self._reconcile(group)
                self.most_workers = max(self.most_workers, len(self._kubernetes.pods) - 1)

    def _reconcile(self, group: Object) -> None:
        """Remove the pods of a group that are to go or have ended, then start as many as are missing."""
        pods = self._kubernetes.pods
        mine = [name for name, pod in pods.items() if pod["metadata"]["labels"]["ray.io/group"] == group["groupName"]]
        to_delete = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
        for name in mine:
            if name in to_delete or self._processes[name].poll() is not None:
                if name not in to_delete:
                    self.broken[name] = (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]
                _end(self._processes[name])
                del pods[name]
                self._kubernetes.version += 1
        for _ in range(group["replicas"] - sum(name in pods for name in mine)):
            self._start(group)

    def _start(self, group: Object) -> None:
        name = f"dray-{group['groupName']}-worker-{next(self._numbers)}"
        environment = {"RAY_CLOUD_INSTANCE_ID": name, "RAY_NODE_TYPE_NAME": group["groupName"]}
        resources = _get_ray_resources_from_group_spec(group, is_head=False)
        parameters = {"num-cpus": resources["CPU"], "memory": resources["memory"], **group["rayStartParams"]}
        parameters |= dict.fromkeys(_FREE_PORTS, 0)
        command = ["ray", "start", f"--address={self._address}", "--block"]
        command += [f"--{key}={value}" for key, value in parameters.items()]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self._environment | environment, stdout=log, stderr=log, start_new_session=True
            )
        self._kubernetes.pods[name] = self._pod(name, group["groupName"], "worker")
        self._kubernetes.version += 1

    def _pod(self, name: str, group: str, node_type: str) -> Object:
        labels = {"ray.io/cluster": self._kubernetes.name, "ray.io/group": group, "ray.io/node-type": node_type}
        return {
            "metadata": {"name": name, "labels": labels, "resourceVersion": "1"},
            "spec": {"containers": []},
            "status": {"podIP": "127.0.0.1", "containerStatuses": [{"state": {"running": {}}}]},
        }


@contextmanager
def autoscaler(
    kubernetes: FakeKubernetes, gcs: str, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ray's own autoscaler with its KubeRay provider, as the operator starts it in a container beside the head."""
    command = ["ray", "kuberay-autoscaler", "--cluster-name", kubernetes.name]
    command += ["--cluster-namespace", kubernetes.namespace, "--gcs-address", gcs]
    with open(log, "wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        _end(process)


def _family(process: subprocess.Popen[bytes]) -> list[Any]:
    """Return the processes that a process started, then itself; an empty list if it is gone."""
    try:
        first = psutil.Process(process.pid)
        return [*first.children(recursive=True), first]
    except psutil.NoSuchProcess:
        return []


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started."""
    for each in _family(process):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(60)
