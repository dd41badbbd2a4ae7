"""A cluster with Ray's own autoscaler (v2), whose machines are raylets on this one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider
from ray.util.state import list_nodes

from tests.faults.cluster import RayCluster, free_port, running_cluster

_IDLE_MINUTES = 0.1  # after which a node goes
_OBJECT_STORE_BYTES = 80_000_000
# Sections that Ray wants although only clusters over ssh use them: they are empty here.
_LISTS = ["initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"]
_LISTS += ["head_start_ray_commands", "worker_start_ray_commands"]
_LISTS += ["cluster_synced_files", "rsync_exclude", "rsync_filter"]
_OBJECTS = ["auth", "docker", "file_mounts"]


@contextmanager
def autoscaling_cluster(folder: Path, max_workers: int) -> Iterator[RayCluster]:
    """Run a head without CPUs; the autoscaler adds and takes away nodes of one CPU each, beginning with none."""
    port, config = free_port(), folder / "autoscaler.yaml"
    gcs_address = f"{ray.util.get_node_ip_address()}:{port}"
    config.write_text(yaml.safe_dump(_autoscaler_config(gcs_address, max_workers)))
    environment = {
        "RAY_enable_autoscaler_v2": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    with running_cluster(environment, gcs_server_port=port, autoscaling_config=str(config)) as cluster:
        # Drivers are no nodes.
        cluster.environment = {name: value for name, value in cluster.environment.items() if name not in environment}
        yield cluster


def num_workers(cluster: RayCluster) -> int:
    """Return the number of living nodes beside the head."""
    nodes = list_nodes(
        address=f"http://{cluster.dashboard}", filters=[("state", "=", "ALIVE")], raise_on_missing_output=False
    )
    return sum(not node.is_head_node for node in nodes)


def _autoscaler_config(gcs_address: str, max_workers: int) -> dict[str, Any]:
    """Return the file for `ray start --autoscaling-config`.

    The provider is the one of Ray's own tests, declared as an external one: under its own name Ray would look for an
    example.yaml that its wheel lacks (2.60).
    """
    provider = {
        "type": "external",
        "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
        "head_node_id": FAKE_HEAD_NODE_ID,
        "gcs_address": gcs_address,
        "launch_multiple": True,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    worker = {"CPU": 1, "object_store_memory": _OBJECT_STORE_BYTES}
    return {
        "cluster_name": "test",
        "max_workers": max_workers,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": _IDLE_MINUTES,
        "provider": provider,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": max_workers},
        },
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _LISTS},
        **{name: {} for name in _OBJECTS},
    }
