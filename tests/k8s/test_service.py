"""Ray Serve takes the endpoint's manifest as KubeRay's operator hands it over, through the dashboard's HTTP API."""

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.cluster import ROOT, RayCluster, free_port, running_cluster
from tests.jobs.runs import wait_until
from tests.k8s.manifests import K8S, of_kind, render, serve_config
from tests.k8s.monitoring.exported_names import names_in

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]
PATIENCE_S = 600.0
KEY = "a-key-of-somebody-who-may-ask"
PROMPT = {"model": "qwen3-8b", "prompt": "The cat", "max_tokens": 24, "temperature": 0}
# A counter is there from its first addition on.
UNTIL_SOMETHING_FAILS = {"ray_serve_deployment_error_counter_total", "ray_serve_health_check_failures_total"}


@dataclass
class Endpoint:
    """The running service."""

    cluster: RayCluster
    port: int
    token: str

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return fetch(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, named))

    def complete(self, **headers: str) -> tuple[int, bytes]:
        """Send a small request to generate; return the status and the body of the answer."""
        return self.ask("/v1/completions", json.dumps(PROMPT).encode(), Content_Type="application/json", **headers)

    def of_ray(self, path: str, body: bytes | None = None) -> Any:
        """Return the JSON that Ray's dashboard answers to GET, or with a body to PUT."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"http://{self.cluster.dashboard}{path}"
        status, said = fetch(urllib.request.Request(url, body, headers, method="PUT" if body else "GET"))
        assert status == 200, said
        return json.loads(said or b"null")

    def metrics(self) -> set[str]:
        """Return the names that Prometheus would find on the cluster's nodes, by the list that Ray has of them."""
        names: set[str] = set()
        for node in self.of_ray("/api/prometheus/sd"):
            for target in node["targets"]:
                with suppress(urllib.error.URLError):  # the list has the autoscaler's port, where none runs, too
                    _, page = fetch(urllib.request.Request(f"http://{target}/metrics"))
                    families = text_string_to_metric_families(page.decode())
                    names |= {sample.name for family in families for sample in family.samples}
        return names

    def application(self) -> Any:
        """Return the status of the application in Ray Serve."""
        return self.of_ray("/api/serve/applications/")["applications"]["dray"]

    def deploy(self, config: dict[str, Any]) -> None:
        """Hand Serve its configuration and wait until the application runs."""
        self.of_ray("/api/serve/applications/", json.dumps(config).encode())
        wait_until(lambda: self.application()["status"] not in ("NOT_STARTED", "DEPLOYING"), PATIENCE_S, every_s=1)
        assert self.application()["status"] == "RUNNING", self.application()


def fetch(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def config_here(folder: Path, port: int) -> dict[str, Any]:
    """Return serveConfigV2 with the bundled pair on CPU and paths of this machine; all else is as in the manifest."""
    config = serve_config("overlays/service")
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    sections = config["applications"][0]["args"]
    pair = ROOT / "examples" / "tiny_pair"
    sections["models"] = {"target": str(pair / "target"), "draft": str(pair / "draft"), "device": "cpu"}
    sections["engine"] |= {"num_slots": 4, "max_model_len": 256}
    (folder / "keys").write_text(f"{KEY}\n")
    sections["serve"] |= {"key_files": [str(folder / "keys")], "num_gpus": 0}
    return config


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Deploy on a cluster of one node, as several nodes on one address could not all listen at one port."""
    token, port = secrets.token_hex(32), free_port()
    with running_cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}, num_cpus=2) as cluster:
        endpoint = Endpoint(cluster, port, token)
        endpoint.deploy(config_here(tmp_path_factory.mktemp("service"), port))
        yield endpoint


def test_only_a_request_with_a_key_is_answered(endpoint):
    assert endpoint.complete()[0] == 401
    status, said = endpoint.complete(Authorization=f"Bearer {KEY}")
    assert status == 200
    assert json.loads(said)["usage"]["completion_tokens"] > 0


def test_the_health_page_that_kuberay_reads_needs_no_key(endpoint):
    assert endpoint.ask("/-/healthz")[0] == 200


def test_the_gate_stands_before_the_proxy(endpoint):
    status, said = endpoint.ask("/-/routes")
    assert (status, json.loads(said)["error"]["code"]) == (404, "unknown_url")
    assert endpoint.complete(Authorization=f"Bearer {KEY}", x_request_timeout_seconds="0.001")[0] == 200


def test_prometheus_finds_every_metric_of_the_dashboard_and_the_alerts(endpoint):
    endpoint.complete(Authorization=f"Bearer {KEY}")
    groups = of_kind(render("base/monitoring"), "PrometheusRule")["spec"]["groups"]
    queries = [rule["expr"] for group in groups if group["name"] == "dray-endpoint" for rule in group["rules"]]
    dashboard = json.loads((K8S / "base" / "monitoring" / "dashboards" / "dray-endpoint.json").read_text())
    queries += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    missing = set().union(*map(names_in, queries)) - UNTIL_SOMETHING_FAILS

    def nothing_is_missing() -> bool:
        missing.difference_update(endpoint.metrics())
        return not missing

    with suppress(AssertionError):  # Ray passes metrics on every 10 s
        wait_until(nothing_is_missing, 90, every_s=2)
    assert missing == set()


def test_no_process_of_the_endpoint_is_put_on_a_head_without_cpus(tmp_path):
    token, port = secrets.token_hex(32), free_port()
    with running_cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}) as cluster:
        worker = cluster.add_node(num_cpus=2)
        endpoint = Endpoint(cluster, port, token)
        endpoint.deploy(config_here(tmp_path, port) | {"proxy_location": "HeadOnly"})  # one address, one port
        deployments = endpoint.application()["deployments"]
        assert deployments.keys() == {"DrayIngress", "Replica"}
        places = {name: {each["node_id"] for each in one["replicas"]} for name, one in deployments.items()}
        assert places == {"DrayIngress": {worker}, "Replica": {worker}}
