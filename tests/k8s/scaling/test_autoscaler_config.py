"""Ray's own code reads the manifests: what its autoscaler believes about the groups, and whether the work fits."""

import os
import re
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.kuberay.utils import parse_quantity

from endpoint.gate.gate import INGRESS_NAME
from tests.k8s.manifests import (
    K8S,
    OVERLAYS,
    cluster_spec,
    ground,
    of_kind,
    ray_objects,
    render,
    run_config,
    serve_config,
)

GIB = 2**30
# What kind's own pods ask for (two of CoreDNS, etcd, API server, controllers, scheduler, kindnet), and KubeRay's.
KIND_CPUS = sum(map(Decimal, ("0.2", "0.1", "0.25", "0.2", "0.1", "0.1", "0.1")))
_GIVES_UP = """
from ray.autoscaler.v2.instance_manager.config import InstanceReconcileConfig
print(InstanceReconcileConfig().allocate_status_timeout_s)
"""
GPU = {"CPU": 8, "GPU": 1, "memory": 64 * GIB}
EXPECTED: dict[str, dict[str, tuple[dict[str, int], int, int, float, int | None]]] = {
    # group -> resources, least and most nodes, seconds until an idle one goes, priority
    "overlays/job": {"gpu": (GPU, 0, 8, 120.0, None)},
    "overlays/job-64": {"gpu": (GPU, 0, 64, 300.0, None)},
    "overlays/kueue-elastic": {"gpu": (GPU, 0, 8, 120.0, None)},
    "overlays/node-disk": {"gpu": (GPU, 0, 8, 120.0, None)},
    "overlays/stages": {"gpu": ({"CPU": 16, "GPU": 4, "memory": 160 * GIB}, 0, 2, 120.0, None)},
    "overlays/cluster": {"gpu": (GPU, 0, 8, 120.0, None)},
    "overlays/spot": {"on-demand": (GPU, 0, 2, 120.0, 0), "spot": (GPU, 0, 8, 120.0, 10)},
    "overlays/split": {
        "target": (GPU, 0, 8, 120.0, None),
        "draft": ({"CPU": 4, "GPU": 1, "memory": 16 * GIB}, 0, 8, 120.0, None),
    },
    "overlays/service": {"gpu": (GPU, 1, 8, 120.0, None)},
    **{f"overlays/{name}": {"gpu": (GPU, 1, 8, 120.0, None)} for name in ("head-ft", "head-ft-embedded")},
    "overlays/service-incremental": {"gpu": (GPU, 1, 8, 120.0, None)},
    **{f"overlays/{name}": {"gpu": (GPU, 0, 8, 120.0, None)} for name in ("history", "watchdog")},
    "overlays/cpu-demo": {"cpu": ({"CPU": 1, "memory": 3 * GIB}, 0, 2, 30.0, None)},
}

pytestmark = pytest.mark.kubernetes


def node_types(folder: str) -> dict[str, Any]:
    """Return the node types that the autoscaler reads from an overlay's cluster."""
    (ray,) = ray_objects(render(folder))
    cluster = {"metadata": {"name": "x", "namespace": ray["metadata"]["namespace"]}, "spec": cluster_spec(ray)}
    config = _derive_autoscaling_config_from_ray_cr(cluster)
    assert config["provider"]["namespace"] == "dray"
    return dict(config["available_node_types"])


def test_every_autoscaling_overlay_is_here():
    rays = [(folder, ray) for folder in OVERLAYS for ray in ray_objects(render(folder))]
    assert {folder for folder, ray in rays if cluster_spec(ray)["enableInTreeAutoscaling"]} == set(EXPECTED)


@pytest.mark.parametrize("folder", EXPECTED)
def test_the_autoscaler_reads_what_the_manifest_means(folder):
    types = node_types(folder)
    head = types.pop("headgroup")
    memory = {"overlays/cpu-demo": 3 * GIB, "overlays/job-64": 64 * GIB}.get(folder, 16 * GIB)
    assert head["resources"] == {"CPU": 0, "memory": memory}
    assert types.keys() == EXPECTED[folder].keys()
    for name, (resources, least, most, idle_s, priority) in EXPECTED[folder].items():
        kind = types[name]
        assert kind["resources"] == resources
        assert (kind["min_workers"], kind["max_workers"]) == (least, most)
        assert kind["idle_timeout_s"] == idle_s
        assert kind.get("priority") == priority


def room(folder: str, demand: dict[str, float], labels: dict[str, str]) -> float:
    """Return the largest number of actors with this demand that the groups with these labels have room for."""
    total = 0.0
    for name, kind in node_types(folder).items():
        if name != "headgroup" and labels.items() <= kind["labels"].items():
            each = min(kind["resources"].get(what, 0) // amount for what, amount in demand.items())
            total += kind["max_workers"] * each
    return total


@pytest.mark.parametrize(
    "folder", ["overlays/job", "overlays/job-64", "overlays/spot", "overlays/split", "overlays/cpu-demo"]
)
def test_all_actors_of_a_run_find_room(folder):
    run = run_config(folder)
    actors = run["actors"]
    is_gpu = run["models"]["device"] == "cuda"
    demand = {"GPU": actors["num_gpus"]} if is_gpu else {"CPU": actors.get("num_cpus", 1)}
    assert room(folder, demand, actors.get("label_selector", {})) >= actors["max_actors"]
    if run.get("placement") == "split":
        drafts = run["drafts"]
        num_drafts = actors["max_actors"] * drafts["per_target"]
        assert room(folder, {"GPU": drafts["num_gpus"]}, drafts["label_selector"]) >= num_drafts
        assert not set(actors["label_selector"].items()) & set(drafts["label_selector"].items())


@pytest.mark.parametrize("folder", ["overlays/service", "overlays/head-ft"])
def test_all_engines_of_the_endpoint_and_one_of_an_update_find_room(folder):
    serve = serve_config(folder)["applications"][0]["args"]["serve"]
    assert room(folder, {"GPU": serve["num_gpus"]}, {}) > serve["max_replicas"]
    assert serve["min_replicas"] <= node_types(folder)["gpu"]["min_workers"] * 1


@pytest.mark.parametrize("folder", ["overlays/service", "overlays/head-ft"])
def test_every_process_of_the_endpoint_asks_for_what_only_workers_have(folder):
    (application,) = serve_config(folder)["applications"]
    (ingress,) = application["deployments"]
    assert ingress["name"] == INGRESS_NAME
    asked_cpus, serve = ingress["ray_actor_options"]["num_cpus"], application["args"]["serve"]
    types = node_types(folder)
    assert types["headgroup"]["resources"]["CPU"] == 0 < asked_cpus
    engine_cpus = 1 * types["gpu"]["resources"]["GPU"] / serve["num_gpus"]  # endpoint.deployment: one for each engine
    assert engine_cpus + serve["num_ingresses"] * asked_cpus <= types["gpu"]["resources"]["CPU"]


def test_a_spot_pod_that_does_not_come_is_given_up_in_the_time_that_the_readme_says():
    options = cluster_spec(of_kind(render("overlays/spot"), "RayJob"))["autoscalerOptions"]
    env = os.environ | {each["name"]: each["value"] for each in options["env"]}
    done = subprocess.run([sys.executable, "-c", _GIVES_UP], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "600", done.stderr
    assert "a pod that has waited ten minutes is given up" in (K8S / "README.md").read_text()


def test_the_demo_and_kind_itself_need_what_the_readme_says():
    job = of_kind(render("overlays/cpu-demo"), "RayJob")
    spec = cluster_spec(job)
    (group,) = spec["workerGroupSpecs"]
    pods = [(spec["headGroupSpec"]["template"], 1), (group["template"], group["maxReplicas"])]
    pods.append((job["spec"]["submitterPodTemplate"], 1))
    asked = [(template["spec"]["containers"][0]["resources"], number) for template, number in pods]
    asked.append((spec["autoscalerOptions"]["resources"], 1))
    (cpus, gib) = map(int, re.findall(r"It wants (\d+) CPUs and (\d+) GiB", (K8S / "README.md").read_text())[0])
    of_demo = sum(parse_quantity(each["requests"]["cpu"]) * number for each, number in asked)
    assert of_demo == Decimal("3.5")
    assert cpus - 1 < of_demo + KIND_CPUS <= cpus
    memory = sum(parse_quantity(each["requests"]["memory"]) * number for each, number in asked)
    assert memory + GIB // 2 <= gib * GIB


def test_a_queued_job_has_as_many_machines_as_actors():
    (group,) = cluster_spec(of_kind(render("overlays/kueue"), "RayJob"))["workerGroupSpecs"]
    max_actors = run_config("overlays/kueue")["actors"]["max_actors"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == max_actors


def test_the_quota_of_the_namespace_allows_the_largest_overlay():
    for folder in EXPECTED:
        quota = of_kind(ground(folder), "ResourceQuota")["spec"]["hard"]
        workers = [kind for name, kind in node_types(folder).items() if name != "headgroup"]
        gpus = sum(kind["max_workers"] * kind["resources"].get("GPU", 0) for kind in workers)
        assert gpus <= int(quota["requests.nvidia.com/gpu"]), folder
