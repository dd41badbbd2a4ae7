"""Deployment: the application on Ray Serve, an ingress that speaks HTTP and replicas with an engine for each model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RaySystemError, RayTaskError
from ray.serve.config import AutoscalingConfig
from ray.serve.handle import DeploymentHandle

from actors.settings import GeneratorSettings
from actors.workers.replica import Replica, ReplicaSettings
from endpoint.batches.batch import BatchSettings
from endpoint.batches.process import BatchesProcess
from endpoint.edge.install import EdgeSettings
from endpoint.gate.gate import INGRESS_NAME, PROTOCOL, Gate, environment
from endpoint.http.bodies import Limits
from endpoint.ingress import Ingress
from endpoint.service.served_model import DeploymentSettings as DeploymentSettings
from endpoint.service.served_model import ServedModel, deployment_name
from pipeline.logs import LogSettings
from pipeline.ray_internals import (
    begin_deleting,
    has_direct_ingress,
    has_haproxy,
    serve_details,
    serve_http_options,
    with_version,
)

APP_NAME = "dray"  # of our application, on a Serve that may have others
_REPLY_S = 30.0  # for the controller or a proxy to reply
_PROXY_EXTRA_S = 60.0  # beyond the endpoint's own deadline, so that a request meets that one first
_LOOK_EVERY_S, _ENDING_S = 0.2, 60.0  # the latter for processes to end once they are drained
REPLICA_NAME, BATCHES_NAME = "Replica", "Batches"
_UNITS_PER_REPLICA = 2  # of batches under way at once: one ends while the next one fills its slots
_MARK = "mark"  # a key of the configuration that Serve keeps for a deployment
_INGRESS_PERIOD_S = 1.0  # between looks at an ingress: it is asked nothing that costs, and is soon replaced
_WITHOUT_PROXIES = (
    "clients would be connected to Ray's HAProxy, or to an ingress, and not to Serve's own proxies, which alone hold "
    "the endpoint's gate (docs/serving.md). Unset RAY_SERVE_ENABLE_HA_PROXY, RAY_SERVE_ENABLE_DIRECT_INGRESS and "
    "RAY_SERVE_THROUGHPUT_OPTIMIZED"
)
_INGRESS_ONGOING = 10_000  # far more than replicas take: they refuse in the API's form, Serve would not


@dataclass(frozen=True)
class DeployedVersion:
    """What Serve keeps of an application, so that another one that differs by its draft alone replaces no process."""

    number: str  # of the processes
    rest: str  # a digest of everything but the draft
    draft: str | None

    def of_next(self, rest: str, draft: str | None) -> bool:
        """Tell whether an application of this rest and draft differs from this one by its draft alone."""
        return bool(rest) and rest == self.rest and None not in (draft, self.draft) and draft != self.draft


def make_application(
    models: Sequence[ServedModel],
    edge_settings: EdgeSettings,
    replica_settings: ReplicaSettings,
    deployment_settings: DeploymentSettings,
    log_settings: LogSettings,
    *,
    batch_settings: BatchSettings | None = None,
    roster: Any = None,
    mark: str = "",
    version: DeployedVersion | None = None,
) -> Any:
    """Return what `serve.run` takes. `roster` is the DraftRoster of placement "split", an actor.

    Each of the models gets a deployment of its own; the first one is the endpoint's own, the others are its adapters.
    The Batch API is on if `batch_settings` have a path.

    `mark` identifies the command that deploys it (`deployed_mark`). Processes of the same `version` stay when another
    application is deployed over theirs, and take its draft; without one they are replaced, in any case.
    """
    asked = deployment_settings
    num_taken = models[0].settings.most_slots + replica_settings.max_waiting  # samples, by a replica
    lifetime: dict[str, Any] = {
        "max_surge_percent": asked.max_surge_percent,
        "graceful_shutdown_timeout_s": asked.drain_timeout_s,
        "health_check_period_s": asked.health_period_s,
        "health_check_timeout_s": asked.health_timeout_s,
        "logging_config": {"enable_access_log": False},
    }
    engines = _engine_options(models[0].settings, asked, num_taken) | lifetime
    said = {} if version is None else {"draft": version.draft, "rest": version.rest, "version": version.number}

    def versioned(deployment: Any) -> Any:
        return deployment if version is None else with_version(deployment, version.number)

    replicas = []
    for model in models:
        name = deployment_name(REPLICA_NAME, model.adapter)
        own = replace(replica_settings, fingerprint=model.fingerprint)
        deployment = versioned(serve.deployment(Replica, name=name, user_config=said, **engines))
        replicas.append(deployment.bind(model.settings, own, log_settings, roster))
    light: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": _INGRESS_ONGOING}
    batches = None
    if batch_settings is not None and batch_settings.path is not None:
        max_units, max_line_bytes = _UNITS_PER_REPLICA * asked.max_replicas, edge_settings.limits.max_body_bytes
        process = versioned(serve.deployment(BatchesProcess, name=BATCHES_NAME, num_replicas=1, **light, **lifetime))
        batches = process.bind(models, batch_settings, log_settings, replicas, max_units, max_line_bytes)
    ingress = versioned(
        serve.deployment(
            serve.ingress()(Ingress),
            name=INGRESS_NAME,
            num_replicas=asked.num_ingresses,
            user_config={_MARK: mark},
            **light,
            **lifetime | {"health_check_period_s": min(asked.health_period_s, _INGRESS_PERIOD_S)},
        )
    )
    max_requests = num_taken * asked.max_replicas  # of each model
    return ingress.bind(
        models,
        edge_settings,
        log_settings,
        replicas,
        max_requests,
        batch_settings if batches is not None else None,
        batches,
    )


def _engine_options(settings: GeneratorSettings, asked: DeploymentSettings, num_taken: int) -> dict[str, Any]:
    """Return the options of a deployment of engines, each of which takes `num_taken` samples.

    The ingress refuses requests beyond what all replicas take, and a replica those beyond what it takes, at once and in
    the API's form. Serve's own queue is bounded, too, but those limits are reached first.
    """
    scaling: dict[str, Any] = {"num_replicas": asked.min_replicas}
    if asked.max_replicas > asked.min_replicas:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=asked.min_replicas,
                max_replicas=asked.max_replicas,
                target_ongoing_requests=asked.target_ongoing_requests or float(settings.engine.slots),
                upscale_delay_s=asked.upscale_delay_s,
                downscale_delay_s=asked.downscale_delay_s,
            )
        }
    return {
        "ray_actor_options": asked.actor_options | ({"num_cpus": 1.0} if asked.num_gpus else {}),
        "max_ongoing_requests": 2 * num_taken + 16,
        "max_queued_requests": 2 * num_taken + 16,
        **scaling,
    }


def start(host: str, port: int, limits: Limits, request_timeout_s: float | None = None) -> None:
    """Start Serve on this cluster at `host` and `port`, behind the gate; do nothing if one runs already.

    The proxy ends a request that no process of the endpoint has taken a minute after `request_timeout_s`.
    """
    proxy_timeout_s = None if request_timeout_s is None else request_timeout_s + _PROXY_EXTRA_S
    serve.start(
        proxy_location="EveryNode",  # that has a process of the endpoint
        http_options={"host": host, "port": port, "request_timeout_s": proxy_timeout_s},
        controller_options={"runtime_env": {"env_vars": environment(limits)}},
    )


def refuse_direct_ingress() -> None:
    """Raise ValueError if the environment of this process would let Serve do without its own proxies."""
    if has_direct_ingress():
        raise ValueError(f"{_WITHOUT_PROXIES} in the environment, and run this command again")


def check_gate(limits: Limits) -> None:
    """Raise ValueError if the Serve of this cluster has a proxy without the gate, as another program may start it.

    Raises it also for the gate of another release or with other limits, and RuntimeError if a proxy does not reply.
    """
    try:
        is_haproxy, proxies = has_haproxy(_REPLY_S), serve_http_options(_REPLY_S)
        has_gate = bool(proxies) and all(_has_gate(options, limits) for options in proxies)
    except (RayError, ValueError) as error:  # the latter where there is no controller
        kind = type(error).__name__
        raise RuntimeError(f"the Ray Serve of this cluster cannot be asked for its gate ({kind}); try again") from error
    if is_haproxy:
        raise ValueError(
            f"{_WITHOUT_PROXIES} where the nodes of this cluster are started, end its Serve (`serve shutdown`) and run "
            "this command again; or serve on another cluster (serve.ray_address)"
        )
    if not has_gate:
        raise ValueError(
            "the Ray Serve that runs on this cluster was started without this endpoint's gate, or with that of another "
            "release or other limits (serve.max_body_bytes and the like): its proxy would obey headers of "
            "clients, or keep bodies that are too large. End it (`serve shutdown`) and run this command again, which "
            "starts it with the gate; or, if it must stay, serve on another cluster (serve.ray_address)"
        )


def _has_gate(options_reference: Any, limits: Limits) -> bool:
    try:
        options = ray.get(options_reference, timeout=_REPLY_S)
    except (RayTaskError, RaySystemError):  # it cannot be pickled, so its middlewares are not ours
        return False
    return any(
        middleware.cls is Gate
        and middleware.kwargs.get("protocol") == PROTOCOL
        and vars(middleware.kwargs["limits"]) == vars(limits)
        for middleware in options.middlewares
    )


def is_deployed() -> bool:
    """Tell whether there is an application of our name, in whatever state."""
    return APP_NAME in serve.status().applications


def deployed_version() -> DeployedVersion | None:
    """Return the version of the application of our name that was deployed last, if it has one."""
    said = _deployed_config(REPLICA_NAME)
    return DeployedVersion(said["version"], said["rest"], said["draft"]) if "version" in said else None


def deployed_mark() -> str | None:
    """Return the mark of the application of our name that was deployed last; None if there is none, or no mark.

    Neither Serve's status nor its deployment times (2.60) show that an application was deployed over another.
    """
    mark: str | None = _deployed_config(INGRESS_NAME).get(_MARK)
    return mark


def _deployed_config(deployment: str) -> dict[str, Any]:
    deployments = serve_details(_REPLY_S)["applications"].get(APP_NAME, {}).get("deployments", {})
    return dict(deployments.get(deployment, {}).get("deployment_config", {}).get("user_config") or {})


def deploy(application: Any) -> DeploymentHandle:
    """Deploy the application on the Serve of this cluster at "/" and wait until it is up. Raises RuntimeError."""
    return serve.run(application, name=APP_NAME, route_prefix="/")


def withdraw(drain_timeout_s: float) -> None:
    """Remove the application; return when requests in flight have finished, or `drain_timeout_s` is over."""
    begin_deleting(APP_NAME)
    gives_up_at = time.monotonic() + drain_timeout_s + _ENDING_S
    while is_deployed() and time.monotonic() < gives_up_at:
        time.sleep(_LOOK_EVERY_S)
