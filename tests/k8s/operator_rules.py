"""What KubeRay's operator refuses beyond its schemas, or takes and does otherwise than one thinks (KubeRay 1.7)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from tests.k8s.manifests import cluster_spec, groups

Object = dict[str, Any]
_LONGEST_NAME = {"RayCluster": 53, "RayJob": 47, "RayService": 47}  # the operator appends to it
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
_START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
_EARLIER_FIRST = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


def problems_with(ray: Object) -> list[str]:
    """Of a RayCluster, RayJob or RayService."""
    found = [*_name(ray), *_cluster(ray)]
    if ray["kind"] == "RayJob":
        found += _job(ray["spec"])
    if ray["kind"] == "RayService":
        found += _service(ray)
    return found


def _name(ray: Object) -> Iterator[str]:
    name, longest = ray["metadata"]["name"], _LONGEST_NAME[ray["kind"]]
    if len(name) > longest:
        yield f"metadata.name: {len(name)} characters, KubeRay takes {longest}"
    if not _DNS_LABEL.fullmatch(name):
        yield f"metadata.name: {name!r} is no DNS-1035 label"


def _cluster(ray: Object) -> Iterator[str]:
    spec, annotations = cluster_spec(ray), ray["metadata"].get("annotations", {})
    head = spec["headGroupSpec"]
    scales = spec.get("enableInTreeAutoscaling", False)
    options = spec.get("autoscalerOptions", {})
    head_environment = _environment(head)
    names = [group.get("groupName") for group in spec.get("workerGroupSpecs", [])]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"workerGroupSpecs: two groups are called {name!r}"
    for name, group in groups(ray):
        start = group.get("rayStartParams", {})
        if group.get("resources") and any(start.get(key) for key in _START_RESOURCES):
            yield f"{name}: resources are in rayStartParams and in resources; KubeRay takes one of them"
        if "labels" in start:
            yield f"{name}: rayStartParams.labels; KubeRay takes labels beside it"
        if not group["template"]["spec"].get("containers"):
            yield f"{name}: no container"
        if scales and options.get("version", "v2") == "v2":
            policy = group["template"]["spec"].get("restartPolicy")
            if policy not in (None, "", "Never"):
                yield f"{name}: restartPolicy {policy}; with autoscaler v2 it is Never, or not set"
        if scales and group.get("suspend"):
            yield f"{name}: a group cannot be suspended where the autoscaler is on"
    for group in spec.get("workerGroupSpecs", []):
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        replicas = group.get("replicas", 0)
        if not least <= replicas <= most:
            yield f"{group['groupName']}: replicas {replicas} is not between minReplicas {least} and maxReplicas {most}"
    if not scales and options:
        yield "autoscalerOptions: enableInTreeAutoscaling is not true, so they do nothing"
    if not scales and head_environment.get("RAY_enable_autoscaler_v2") in ("1", "true"):
        yield "head: RAY_enable_autoscaler_v2 without enableInTreeAutoscaling"
    if scales and "version" in options and "RAY_enable_autoscaler_v2" in head_environment:
        yield "head: RAY_enable_autoscaler_v2 and autoscalerOptions.version; KubeRay takes the latter alone"
    yield from _fault_tolerance(spec, head, head_environment, annotations)
    if spec.get("authOptions", {}).get("mode") == "token":
        try:
            is_old = Version(spec.get("rayVersion", "")) < Version("2.52.0")
        except InvalidVersion:
            yield f"rayVersion: {spec.get('rayVersion')!r} is no version; token authentication needs one"
        else:
            if is_old:
                yield f"rayVersion: token authentication needs 2.52.0, got {spec['rayVersion']}"


def _fault_tolerance(spec: Object, head: Object, environment: Object, annotations: Object) -> Iterator[str]:
    is_on = "gcsFaultToleranceOptions" in spec
    if is_on and annotations.get("ray.io/ft-enabled"):
        yield "metadata.annotations: ray.io/ft-enabled beside gcsFaultToleranceOptions"
    if not is_on and not annotations.get("ray.io/ft-enabled") and "RAY_REDIS_ADDRESS" in environment:
        yield "head: RAY_REDIS_ADDRESS without gcsFaultToleranceOptions"
    if is_on:
        for name in ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD"):
            if name in environment:
                yield f"head: {name} beside gcsFaultToleranceOptions"
        if "redis-password" in head.get("rayStartParams", {}):
            yield "head: rayStartParams.redis-password beside gcsFaultToleranceOptions"


def _job(spec: Object) -> Iterator[str]:
    mode, shuts_down = spec.get("submissionMode", "K8sJobMode"), spec.get("shutdownAfterJobFinishes", False)
    if mode not in _MODES:
        yield f"submissionMode: {mode!r} is none of {', '.join(_MODES)}"
    if spec.get("suspend") and not shuts_down:
        yield "suspend: only with shutdownAfterJobFinishes"
    if spec.get("ttlSecondsAfterFinished", 0) and not shuts_down:
        yield "ttlSecondsAfterFinished: only with shutdownAfterJobFinishes"
    if spec.get("activeDeadlineSeconds", 1) <= 0:
        yield "activeDeadlineSeconds: must be above 0"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit: must not be negative"
    if mode == "InteractiveMode" and spec.get("backoffLimit"):
        yield "backoffLimit: not in InteractiveMode"
    if mode == "SidecarMode":
        for field in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
            if field in spec:
                yield f"{field}: not in SidecarMode"
    if mode == "HTTPMode" and "submitterPodTemplate" in spec:
        yield "submitterPodTemplate: HTTPMode has no submitter"
    try:
        environment = yaml.safe_load(spec.get("runtimeEnvYAML", "{}"))
    except yaml.YAMLError as error:
        yield f"runtimeEnvYAML: no YAML: {error}"
    else:
        if not isinstance(environment, dict):
            yield "runtimeEnvYAML: no mapping"
    yield from _deletion(spec, shuts_down)


def _deletion(spec: Object, shuts_down: bool) -> Iterator[str]:
    rules = spec.get("deletionStrategy", {}).get("deletionRules", [])
    if rules and shuts_down:
        yield "deletionStrategy: not beside shutdownAfterJobFinishes"
    if not rules and not shuts_down:
        yield "nothing ends the cluster when the job is done: deletionRules, or shutdownAfterJobFinishes"
    after: dict[tuple[str, str], int] = {}
    for rule in rules:
        policy, condition = rule["policy"], rule["condition"]
        status = condition.get("jobStatus") or f"deployment {condition.get('jobDeploymentStatus')}"
        if policy == "DeleteWorkers" and spec["rayClusterSpec"].get("enableInTreeAutoscaling"):
            yield "deletionStrategy: DeleteWorkers does not go with autoscaling"
        if (status, policy) in after:
            yield f"deletionStrategy: two rules for {policy} when {status}"
        after[status, policy] = condition.get("ttlSeconds", 0)
    for status in {status for status, _ in after}:
        waits = [after[status, policy] for policy in _EARLIER_FIRST if (status, policy) in after]
        if waits != sorted(waits):
            yield f"deletionStrategy: when {status}, what is deleted first has the longer ttlSeconds"


def _service(ray: Object) -> Iterator[str]:
    spec, strategy = ray["spec"], ray["spec"].get("upgradeStrategy", {})
    kind, options = strategy.get("type", "NewCluster"), strategy.get("clusterUpgradeOptions", {})
    if kind not in ("NewCluster", "NewClusterWithIncrementalUpgrade", "None"):
        yield f"upgradeStrategy.type: {kind!r}"
    if kind == "NewClusterWithIncrementalUpgrade":
        if not cluster_spec(ray).get("enableInTreeAutoscaling"):
            yield "upgradeStrategy: an incremental upgrade needs the autoscaler"
        step, surge = options.get("stepSizePercent", 0), options.get("maxSurgePercent", 100)
        if not 0 < step <= surge <= 100 or options.get("intervalSeconds", 0) <= 0 or "gatewayClassName" not in options:
            yield "upgradeStrategy.clusterUpgradeOptions: 0 < stepSizePercent <= maxSurgePercent <= 100, and others"
    if spec.get("rayClusterDeletionDelaySeconds", 60) < 0:
        yield "rayClusterDeletionDelaySeconds: must not be negative"
    if "name" in spec["rayClusterConfig"]["headGroupSpec"].get("headService", {}).get("metadata", {}):
        yield "headService.metadata.name: KubeRay names it"
    timeout = ray["metadata"].get("annotations", {}).get("ray.io/initializing-timeout")
    if timeout is not None and not re.fullmatch(r"[1-9]\d*|([1-9]\d*[smh])+", timeout):
        yield f"ray.io/initializing-timeout: {timeout!r} is no time such as 30m, or seconds"


def _environment(group: Object) -> Object:
    containers = group["template"]["spec"].get("containers") or [{}]
    return {each["name"]: each.get("value") for each in containers[0].get("env", [])}
