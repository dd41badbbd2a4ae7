"""overlays/cpu-demo as this machine can run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.k8s.manifests import cluster_spec, of_kind, render
from tests.k8s.payloads import as_here

_IDLE_S = 8  # of a node until it goes; the manifest's 30 would only make the test longer


def demo_config(folder: Path) -> Path:
    """Write the demo's ConfigMap as a file of this machine and return its path."""
    path = folder / "run.yaml"
    path.write_text(as_here(of_kind(render("overlays/cpu-demo"), "ConfigMap")["data"]["run.yaml"], str(folder)))
    return path


def demo_cluster() -> dict[str, Any]:
    """Return the RayCluster that the operator would make of the demo's RayJob."""
    spec = cluster_spec(of_kind(render("overlays/cpu-demo"), "RayJob"))
    for group in spec["workerGroupSpecs"]:
        group["idleTimeoutSeconds"] = _IDLE_S
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "demo", "namespace": "dray"},
        "spec": spec,
    }
