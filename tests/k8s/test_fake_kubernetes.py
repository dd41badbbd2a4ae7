"""The small Kubernetes API answers Ray's own provider, and no client without a certificate."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.k8s.demo import demo_cluster
from tests.k8s.fake_kubernetes import FakeKubernetes, serving
from tests.k8s.manifests import ROOT

# The provider reads its environment when it is imported: it gets a process of its own.
_PROVIDER = """
import json
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay.cloud_provider import KubeRayProvider
provider = KubeRayProvider("demo", {"namespace": "dray"}, gcs_client=None)
before = sorted(provider.get_non_terminated())
provider.launch({"cpu": 2}, "first")
provider.launch({"cpu": 5}, "second")
provider.terminate(["a-worker"], "third")
print(json.dumps({"before": before, "errors": [str(error) for error in provider.poll_errors()]}))
"""

pytestmark = pytest.mark.kubernetes


def _pod(name: str) -> dict[str, object]:
    labels = {"ray.io/cluster": "demo", "ray.io/group": "cpu", "ray.io/node-type": "worker"}
    status = {"podIP": "127.0.0.1", "containerStatuses": [{"state": {"running": {}}}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": []}, "status": status}


def test_rays_provider_launches_and_ends_pods_through_it(tmp_path: Path) -> None:
    kubernetes = FakeKubernetes(demo_cluster(), {"a-worker": _pod("a-worker")})
    with serving(kubernetes, tmp_path) as variables:
        environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _PROVIDER], env=environment, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["before"] == ["a-worker"]
    group = kubernetes.cluster["spec"]["workerGroupSpecs"][0]
    changed = [operation["value"] for patch in kubernetes.patches for operation in patch]
    assert changed[0] == 2  # of a group that may have two at most, so that the second call gets none
    assert any("capped by maxReplicas" in error for error in said["errors"])
    assert group["scaleStrategy"] == {"workersToDelete": ["a-worker"]}
    assert group["replicas"] == 1


def test_a_client_without_a_certificate_gets_no_answer(tmp_path: Path) -> None:
    with serving(FakeKubernetes(demo_cluster()), tmp_path) as variables:
        context = ssl.create_default_context(cafile=variables["RAY_KUBERAY_CA_CERT_PATH"])
        url = f"https://127.0.0.1:{variables['KUBERNETES_SERVICE_PORT_HTTPS']}/api/v1/namespaces/dray/pods"
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            urllib.request.urlopen(url, context=context, timeout=10)
        context.load_cert_chain(variables["RAY_KUBERAY_CLIENT_CERT_PATH"], variables["RAY_KUBERAY_CLIENT_KEY_PATH"])
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert json.load(answer)["items"] == []
