"""The demo's manifest under Ray's real KubeRay autoscaler: nodes come, the job completes exactly, nodes go."""

import os
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import generate
from jobs.driver.stopping import Exit
from pipeline.run.check import check_run
from pipeline.run.commit import read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from tests.faults.cluster import ROOT, running_cluster
from tests.jobs.runs import wait_until
from tests.k8s.manifests import K8S, Object, as_here, cluster_spec, of_kind, render
from tests.k8s.scaling.fake_kubernetes import FakeKubernetes, serving
from tests.k8s.scaling.local_operator import HEAD_POD, LocalOperator, autoscaler

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(2400)]
IDLE_S = 8  # of a node until it goes; the manifest's 30 would only make the test longer
PATIENCE_S = 600.0  # only a run that hangs takes so long; a machine with much else to do takes minutes
# Else units that run together end together, and none is in hand for a moment.
UNIT_BY_UNIT = ("--engine.num_slots=2", "--actors.units_in_flight=1")
# On a machine that is busy with other things a node that is slow to start, or to answer, is not to be lost; one that
# does not answer at all is noticed as soon as elsewhere.
PATIENT = {"RAY_raylet_start_wait_time_s": "180", "RAY_health_check_timeout_ms": "15000"}


def demo_config(folder: Path) -> Path:
    """Write the demo's ConfigMap as a file of this machine and return its path."""
    path = folder / "run.yaml"
    path.write_text(as_here(of_kind(render("overlays/cpu-demo"), "ConfigMap")["data"]["run.yaml"], folder))
    return path


def demo_cluster() -> Object:
    """Return the RayCluster that the operator would make of the demo's RayJob."""
    spec = cluster_spec(of_kind(render("overlays/cpu-demo"), "RayJob"))
    for group in spec["workerGroupSpecs"]:
        group["idleTimeoutSeconds"] = IDLE_S
    metadata = {"name": "demo", "namespace": "dray"}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


@dataclass
class Demo:
    """The running cluster of the demo, and its job."""

    kubernetes: FakeKubernetes
    operator: LocalOperator
    environment: dict[str, str]
    dashboard: str
    folder: Path

    @property
    def output(self) -> Path:
        """The run directory."""
        return self.folder / "out"

    def submit(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        """Submit the demo's job as KubeRay's submitter does."""
        entrypoint = of_kind(render("overlays/cpu-demo"), "RayJob")["spec"]["entrypoint"]
        words = shlex.split(as_here(entrypoint, self.folder))
        return self._submit([], [*words, f"--output.path={self.output}", *flags], environment)

    def hold_a_pod(self, until: Path) -> subprocess.Popen[str]:
        """Submit a job that holds a worker's CPU and does nothing until a file is there."""
        return self._submit(["--entrypoint-num-cpus", "1"], ["bash", "-c", f"until [ -e {until} ]; do sleep 0.2; done"])

    def _submit(
        self, options: list[str], words: list[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ray", "job", "submit", "--address", f"http://{self.dashboard}", *options, "--", *words],
            env=self.environment | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def num_committed(self) -> int:
        """Return the number of committed work units."""
        return len(list(self.output.glob("data/part-*.parquet")))

    def attempts(self) -> list[int]:
        """Return which attempt of each unit was committed; the first is 0."""
        directory = RunDirectory.open(str(self.output))
        return [read_receipt(directory, unit.unit_id).attempt for unit in directory.units()]

    def replicas(self) -> list[int]:
        """Return the numbers of replicas that the autoscaler asked for, in order."""
        operations = [operation for patch in self.kubernetes.patches for operation in patch]
        return [operation["value"] for operation in operations if operation["path"].endswith("/replicas")]


@pytest.fixture
def demo() -> Iterator[Demo]:
    """Start a head without work and the autoscaler beside it, with token authentication and no worker yet."""
    kubernetes, token = FakeKubernetes(demo_cluster()), secrets.token_hex(32)
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    of_head = {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_POD, "RAY_NODE_TYPE_NAME": "headgroup"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dray-")))
        demo_config(folder)
        api = stack.enter_context(serving(kubernetes, folder))
        # Drivers are children of the head: Ray Data shall not keep nodes that it has no use for.
        release = {"RAY_DATA_LOW_UTIL_REQUEST_RELEASE_DELAY_S": "0"}
        variables = of_head | authentication | release | PATIENT
        cluster = stack.enter_context(running_cluster(variables, no_monitor=True))
        environment = {name: value for name, value in cluster.environment.items() if name not in of_head}
        environment["RAY_ADDRESS"] = cluster.address
        operator = stack.enter_context(LocalOperator(kubernetes, cluster.address, environment, folder))
        scaling = environment | api | {"AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        stack.enter_context(autoscaler(kubernetes, cluster.address, scaling, folder / "autoscaler.log"))
        yield Demo(kubernetes, operator, environment, cluster.dashboard, folder)


@pytest.fixture(scope="session")
def undisturbed(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the content hash of the demo's corpus, generated by this process's own Ray."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = ["--config", str(demo_config(folder)), f"--output.path={folder / 'out'}", "--run.progress=none"]
    assert generate.main(arguments) == Exit.COMPLETE
    return content_hash(RunDirectory.open(str(folder / "out")))


def prove_complete(demo: Demo, job: subprocess.Popen[str], expected: str) -> None:
    """Assert that the job succeeded and wrote what an undisturbed run writes."""
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, said[-4000:]
    directory = RunDirectory.open(str(demo.output))
    assert check_run(directory).problems == []
    assert content_hash(directory) == expected


def test_the_demo_scales_from_none_to_two_and_back_and_completes_exactly(demo, undisturbed):
    assert demo.operator.workers() == []
    job = demo.submit()
    wait_until(lambda: len(demo.operator.workers()) == 2 or job.poll() is not None, PATIENCE_S, every_s=0.3)
    prove_complete(demo, job, undisturbed)
    wait_until(lambda: demo.operator.workers() == [], PATIENCE_S, every_s=0.3)
    assert max(demo.replicas()) == demo.operator.most_workers == 2
    assert demo.replicas()[-1] == 0


def test_a_worker_pod_that_is_killed_is_replaced_and_the_demo_completes_exactly(demo, undisturbed):
    job = demo.submit("--actors.min_actors=1", "--actors.max_actors=1", *UNIT_BY_UNIT)
    wait_until(lambda: demo.num_committed() >= 1 or job.poll() is not None, PATIENCE_S, every_s=0.1)
    assert job.poll() is None
    assert demo.num_committed() < 8, "the job was all but done before a pod could be killed"
    before = demo.operator.workers()
    (pod,) = before
    began = demo.operator.cpu_seconds(pod)
    wait_until(lambda: demo.operator.cpu_seconds(pod) > began + 1 or job.poll() is not None, PATIENCE_S, every_s=0.1)
    demo.operator.kill(pod)  # in the midst of a unit, which takes some seconds of computing
    wait_until(lambda: set(demo.operator.workers()) - set(before) or job.poll() is not None, PATIENCE_S, every_s=0.3)
    prove_complete(demo, job, undisturbed)
    assert pod in demo.operator.broken
    assert max(demo.attempts()) > 0, "no unit was on the pod"
    wait_until(lambda: demo.operator.workers() == [], PATIENCE_S, every_s=0.3)


def test_a_pod_that_is_idle_goes_and_the_one_that_works_stays(demo, undisturbed, tmp_path):
    over = tmp_path / "over"
    holding = demo.hold_a_pod(until=over)
    wait_until(lambda: any(map(demo.operator.has_work, demo.operator.workers())), PATIENCE_S, every_s=0.3)
    (idle,) = demo.operator.workers()
    job = demo.submit("--actors.min_actors=1", "--actors.max_actors=1")
    wait_until(lambda: len(demo.operator.workers()) == 2 or job.poll() is not None, PATIENCE_S, every_s=0.3)
    (busy,) = set(demo.operator.workers()) - {idle}
    wait_until(lambda: demo.operator.has_work(busy) or job.poll() is not None, PATIENCE_S, every_s=0.1)
    over.touch()
    wait_until(lambda: len(demo.operator.workers()) == 1 or job.poll() is not None, PATIENCE_S, every_s=0.1)
    assert job.poll() is None, "the job was done before a pod went"
    assert demo.operator.workers() == [busy]
    assert holding.wait(PATIENCE_S) == 0
    prove_complete(demo, job, undisturbed)
    assert set(demo.attempts()) == {0}, "a unit was begun twice"
    assert demo.operator.most_workers == 2
    assert demo.operator.broken == {}


def test_a_job_without_the_token_is_refused(demo):
    job = demo.submit(RAY_AUTH_TOKEN=secrets.token_hex(32))
    said, _ = job.communicate(timeout=PATIENCE_S)
    assert job.returncode != 0
    assert "403" in said or "token" in said.lower()
    assert not demo.output.exists()


def test_a_pod_that_ends_takes_its_node_out_of_use_first(tmp_path):
    with running_cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}) as cluster:
        raylet = cluster.workers[cluster.add_node()]
        shim = tmp_path / "pgrep"  # in a pod there is one raylet; here there are others
        shim.write_text(f"#!/bin/sh\necho {raylet}\n")
        shim.chmod(0o755)
        path = f"{tmp_path}:{cluster.environment['PATH']}"
        environment = cluster.environment | {"PATH": path, "RAY_ADDRESS": cluster.address}
        done = subprocess.run(
            ["bash", str(K8S / "drain.sh"), "20"], env=environment, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        wait_until(lambda: has_ended(raylet), PATIENCE_S, every_s=0.5)


def has_ended(process: int) -> bool:
    """Tell whether a process is gone, or a zombie whose parent has not waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_pod_ends_even_if_its_cluster_is_gone(tmp_path):
    shim = tmp_path / "pgrep"
    shim.write_text("#!/bin/sh\nexit 1\n")
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", str(K8S / "drain.sh"), "600"], env=environment, timeout=30).returncode == 0
