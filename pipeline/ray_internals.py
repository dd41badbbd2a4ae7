"""Ray's private names: every use that Dray makes of them, with the reason. Checked against Ray 2.60.

Another Ray version may change them without notice. `tests/pipeline/test_ray_internals.py` names the ones that are
missing, and fails if another file uses a private name. Ray's modules are imported where they are used, since a process
needs few of them and `ray.data` takes seconds.
"""

import os
from typing import Any

import ray

SERVE_CONTROLLER, SERVE_NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"  # how Serve names its controller


def cluster_address(given: str | None) -> str | None:
    """Return the address, host:port, of the cluster that `ray.init(address=given)` joins; None if it starts its own.

    Without an address Ray joins the cluster that RAY_ADDRESS names, or one that `ray start` has started on this
    machine. Raises ConnectionError if "auto" finds none, ValueError for a text that is no address.
    """
    from ray._private import services

    services.find_gcs_addresses.cache_clear()
    found = services.canonicalize_bootstrap_address(given)
    return None if found is None else str(found)


def is_own_ray() -> bool:
    """Return whether this process has started the Ray that it is connected to, which then ends with it."""
    from ray._private import worker

    return worker._global_node is not None and bool(worker._global_node.is_head())


def keep_ray_on_loopback() -> None:
    """Let the Ray that this process starts next listen on 127.0.0.1 alone, in all of its processes.

    Otherwise they listen on all of the machine's addresses, and every machine that reaches them can run code. Ray has a
    switch for systems where it supports no clusters, and turns 127.0.0.1 into the machine's address where it is named
    itself. A switch that is set in the environment stays as it is.
    """
    from ray._private import ray_constants

    if os.environ.setdefault(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0") == "0":
        ray_constants.ENABLE_RAY_CLUSTER = False


def keep_serve_on_loopback() -> None:
    """Let this process of Serve listen on 127.0.0.1 alone if the rest of its node does.

    Each process of a deployment takes calls from others over gRPC, and listens on all addresses, wherever its node
    does. It begins to listen once the deployment's `__init__` is done, which is to call this.
    """
    if not ray.is_initialized() or ray.util.get_node_ip_address() != "127.0.0.1":
        return
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica

    replica.add_port_to_grpc_server = lambda server, _: add_port_to_grpc_server(server, "127.0.0.1:0")


def actor_id_of(handle: Any) -> str:
    """Return the id of an actor, which its handle only has as a private attribute."""
    return str(handle._actor_id.hex())


def is_actor_dead(actor_id: str) -> bool:
    """Return whether an actor has ended. The public API for this needs the dashboard.

    The cluster has no entry for an actor that ended long ago.
    """
    from ray._private.state import actors

    return bool(actors(actor_id).get("State", "DEAD") == "DEAD")


def node_of_actor(actor_id: str) -> str:
    """Return the id of the node that an actor is on; one of zeros, or no text, while it is on none."""
    from ray._private.state import actors

    return str(actors(actor_id).get("Address", {}).get("NodeID", ""))


def draining_nodes() -> set[str]:
    """Return the ids of the nodes that are about to go: by `ray drain-node`, an autoscaler, or a spot machine's notice.

    One question to the cluster's control process; the public API shows such nodes only through the dashboard.
    """
    from ray._private.state import state

    return set(state.get_draining_nodes())


def block_statistics_cleaner() -> type:
    """Return an execution callback for Ray Data that keeps the driver small.

    Ray Data keeps kilobytes of statistics for every block until a final summary, which Dray does not print.
    """
    from ray.data._internal.execution.execution_callback import ExecutionCallback

    class BlockStatisticsCleaner(ExecutionCallback):  # type: ignore[misc]  # Ray has no types
        def on_execution_step(self, executor: Any) -> None:
            for operator in executor._topology or ():
                getattr(operator, "_output_blocks_stats", []).clear()

    return BlockStatisticsCleaner


def serve_controller() -> Any:
    """Return the controller of this cluster's Serve. Raises ValueError if Serve does not run."""
    return ray.get_actor(SERVE_CONTROLLER, namespace=SERVE_NAMESPACE)


def serve_http_options(timeout_s: float) -> list[Any]:
    """Return one entry for each HTTP proxy of this cluster: a reference to its options.

    Raises ValueError if Serve does not run, RayError if its controller does not answer in `timeout_s`.
    """
    proxies = ray.get(serve_controller().get_proxies.remote(), timeout=timeout_s)
    return [proxy._get_http_options.remote() for proxy in proxies.values()]


def has_haproxy(timeout_s: float) -> bool:
    """Return whether HAProxies stand in the place of this cluster's Serve proxies. Raises as `serve_http_options`."""
    proxies = ray.get(serve_controller().get_proxies.remote(), timeout=timeout_s)
    classes = {proxy._ray_actor_creation_function_descriptor.class_name for proxy in proxies.values()}
    return "HAProxyManager" in classes


def has_direct_ingress() -> bool:
    """Return whether the environment lets a Serve that this process starts do without its own proxies.

    RAY_SERVE_ENABLE_DIRECT_INGRESS, RAY_SERVE_ENABLE_HA_PROXY and RAY_SERVE_THROUGHPUT_OPTIMIZED do so.
    """
    from ray.serve._private import constants

    return bool(constants.RAY_SERVE_ENABLE_DIRECT_INGRESS)


def serve_details(timeout_s: float) -> dict[str, Any]:
    """Return what Serve's dashboard would show of its applications: the public status lacks their configuration."""
    return dict(ray.get(serve_controller().get_serve_instance_details.remote(), timeout=timeout_s))


def begin_deleting(application: str) -> None:
    """Begin to delete an application of Serve. The public call waits, but for no more than a minute."""
    from ray import serve

    serve.delete(application, _blocking=False)


def with_version(deployment: Any, version: str) -> Any:
    """Return a deployment of Serve with a version of its own.

    Serve replaces the processes of a deployment whose version changes, and gives each deployment a random one. Where
    the version stays and only `user_config` differs, it calls `reconfigure` in the processes that run. The public
    argument for this was removed.
    """
    deployment._version = version
    return deployment
