"""What objects refer to: accounts, claims, ConfigMaps, Secrets and their keys, and what selectors of ours select."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import LARGE, Object, all_overlays, name_of, pod_templates, ray_objects, render, run_config
from tests.k8s.monitoring.exported_names import exported_names, names_in, unknown_labels
from tests.k8s.rules import known, sizes
from tests.k8s.rules.labels import pods_of, selects

_IN_EVERY_NAMESPACE = "kube-root-ca.crt"
_ONE_NODE = "dray.dev/one-node"  # an annotation of a claim: the pods that mount it stand on one node
_SEVERITIES = {"info", "warning", "critical"}
_HUB = sizes.WEIGHTS_GIB.keys()


def problems_with(spec: Object, there: list[Object]) -> Iterator[str]:
    """Yield what a pod refers to and what is not there."""
    wanted = [f"ServiceAccount/{spec['serviceAccountName']}"] if "serviceAccountName" in spec else []
    if "priorityClassName" in spec:
        wanted.append(f"PriorityClass/{spec['priorityClassName']}")
    for volume in spec.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            wanted.append(f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}")
        for source in (volume, *volume.get("projected", {}).get("sources", [])):
            if "configMap" in source and source["configMap"]["name"] != _IN_EVERY_NAMESPACE:
                wanted.append(f"ConfigMap/{source['configMap']['name']}")
            if "secret" in source:
                wanted.append(f"Secret/{source['secret'].get('secretName') or source['secret']['name']}")
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        keys = [each.get("valueFrom", {}).get("secretKeyRef") for each in container.get("env", [])]
        wanted += [f"Secret/{key['name']}" for key in keys if key]
        wanted += [
            f"Secret/{each['secretRef']['name']}" for each in container.get("envFrom", []) if "secretRef" in each
        ]
        wanted += [
            f"ConfigMap/{each['configMapRef']['name']}"
            for each in container.get("envFrom", [])
            if "configMapRef" in each
        ]
        for key in filter(None, keys):
            yield from _key(key)
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in there if each["kind"] == "ConfigMap"}
    for source in [volume["configMap"] for volume in spec.get("volumes", []) if "configMap" in volume]:
        for item in source.get("items", []):
            if item["key"] not in maps.get(source["name"], {}) or item["path"] != item["key"]:
                named = f"{item['key']!r}, or has it under another name: {item['path']!r}"
                yield f"the ConfigMap {source['name']} has no {named}"
    names = {name_of(each) for each in there} | {f"Secret/{name}" for name in known.SECRETS}
    yield from (f"refers to {name}, which is nowhere" for name in sorted(set(wanted) - names))


def problems_with_shared(objects: list[Object], there: list[Object]) -> Iterator[str]:
    """Yield the problems of what many objects share: claims, quota, models, monitors and alerts."""
    users = [*objects, *all_overlays()]
    for each in objects:
        found: Iterator[str] = iter(())
        match each["kind"]:
            case "PersistentVolumeClaim":
                found = _claim(each, users)
            case "PriorityClass":
                values = {
                    other["metadata"]["name"]: other["value"] for other in there if other["kind"] == "PriorityClass"
                }
                if values.get("dray-head", 0) <= values.get("dray-worker", 0):
                    found = iter([f"value: a head goes before workers: {values}"])
            case "ConfigMap":
                found = _dashboards(each)
            case "ResourceQuota":
                small = [ray for ray in ray_objects(users) if not _needs_large_ground(ray)]
                found = sizes.problems_with_quota(small, each)
            case "Job":
                found = _prefetch(each, users)
            case "DaemonSet":
                labels = each["spec"]["template"]["metadata"]["labels"]
                found = iter(() if selects(each["spec"]["selector"], labels) else ["does not select its own pods"])
            case "PodMonitor":
                found = _monitor(each, users)
            case "PrometheusRule":
                found = _rules(each)
            case "RayService":
                found = _redis(each)
        yield from (f"{name_of(each)}: {problem}" for problem in found)
    if any(each["kind"] == "Namespace" for each in objects):
        yield from _of_overlays({name_of(each) for each in objects})
    for quota in [each for each in there if each["kind"] == "ResourceQuota" and each not in objects]:
        yield from sizes.problems_with_quota(ray_objects(objects), quota)


def _of_overlays(ground: set[str]) -> Iterator[str]:
    """Yield the accounts and priorities that pods of overlays name, and that the ground does not have."""
    specs = [template["spec"] for each in all_overlays() for _, template in pod_templates(each)]
    wanted = {f"ServiceAccount/{spec['serviceAccountName']}" for spec in specs if "serviceAccountName" in spec}
    wanted |= {f"PriorityClass/{spec['priorityClassName']}" for spec in specs if "priorityClassName" in spec}
    yield from (f"{name}: pods of the overlays name it, and it is not there" for name in sorted(wanted - ground))


def _needs_large_ground(ray: Object) -> bool:
    return any(name_of(ray) == name_of(each) for folder in LARGE for each in render(folder))


def _key(reference: Object) -> Iterator[str]:
    keys = known.SECRETS.get(reference["name"])
    if keys is not None and reference["key"] not in keys:
        yield f"the Secret {reference['name']} has no key {reference['key']!r}"
    if not reference.get("optional"):
        yield f"the Secret {reference['name']} must be optional: not every model, or store, asks for one"


def _redis(service: Object) -> Iterator[str]:
    options = service["spec"]["rayClusterConfig"].get("gcsFaultToleranceOptions", {})
    reference = options.get("redisPassword", {}).get("valueFrom", {}).get("secretKeyRef")
    if reference is not None and reference["key"] not in (known.SECRETS.get(reference["name"]) or ()):
        yield f"no Secret {reference['name']} has a key {reference['key']!r}"
    if options and ".redis.svc" not in options.get("redisAddress", "").partition(":")[0]:
        yield f"redisAddress: the policies let a head out to the namespace redis, not to {options.get('redisAddress')}"
    if options and not options.get("redisAddress", "").endswith(":6379"):
        yield "redisAddress: the policies let a head out to port 6379"


def _claim(claim: Object, users: list[Object]) -> Iterator[str]:
    pods = [
        template["spec"]
        for each in users
        for _, template in pod_templates(each)
        for volume in template["spec"].get("volumes", [])
        if volume.get("persistentVolumeClaim", {}).get("claimName") == claim["metadata"]["name"]
    ]
    is_on_one = claim["metadata"].get("annotations", {}).get(_ONE_NODE) == "true"
    if len(pods) > 1 and not is_on_one and not {"ReadWriteMany"} <= set(claim["spec"]["accessModes"]):
        yield f"accessModes: pods of several nodes mount it, so it is ReadWriteMany, not {claim['spec']['accessModes']}"
    if not pods:
        yield "no pod mounts it"
    if claim["metadata"]["name"] == "dray-models":
        size, needed = parse_quantity(claim["spec"]["resources"]["requests"]["storage"]), sum(_models(users).values())
        if size < needed * 2**30:
            yield f"storage: {size} bytes, and the models of all overlays take {needed:.0f} GiB"


def _models(users: list[Object]) -> dict[str, float]:
    """Return the models of the hub that runs and endpoints name, with the GiB of their weights."""
    configs: list[Any] = []
    for ray in ray_objects(users):
        maps = {each["metadata"]["name"]: each for each in users if each["kind"] == "ConfigMap"}
        name = f"dray-config{ray['metadata']['name'].removeprefix('dray')}"
        configs.append(sizes.config_of(ray, {key: value for key, value in maps.items() if key == name}))
    names = {model for config in configs if config for model in sizes.models_of(config) if not model.startswith("/")}
    return {name: sizes.WEIGHTS_GIB.get(name, 0.0) for name in names}


def _prefetch(job: Object, users: list[Object]) -> Iterator[str]:
    """The Job that fetches models fetches those that runs name, and may."""
    for container in job["spec"]["template"]["spec"]["containers"]:
        env = {each["name"]: each.get("value", "") for each in container["env"]}
        fetched = set(env.get("MODELS", "").split())
        if not fetched or not all(name in _HUB or name.count("/") == 1 for name in fetched):
            yield f"MODELS names no model of a hub: {env.get('MODELS')}"
        wanted = set(sizes.models_of(run_config("overlays/job")))
        if "YOUR" not in env.get("MODELS", "") and not wanted <= fetched:
            yield f"MODELS: runs name {sorted(wanted - fetched)}, too"
        if env.get("HF_HUB_OFFLINE", "0") != "0":
            yield "HF_HUB_OFFLINE: nothing could be fetched"
        if env.get("HF_HOME") != "/models/hf":
            yield f"HF_HOME: runs read models at /models/hf, not at {env.get('HF_HOME')}"


def _monitor(monitor: Object, users: list[Object]) -> Iterator[str]:
    if monitor["metadata"].get("labels", {}).get("release") is None:
        yield "metadata.labels: without `release` no Prometheus of kube-prometheus-stack takes it"
    if "selector" in monitor["spec"] and "namespaceSelector" not in monitor["spec"]:
        chosen = [pod for pod in pods_of(users) if selects(monitor["spec"]["selector"], pod.labels)]
        nodes = [pod for pod in pods_of(users) if pod.labels.get("ray.io/is-ray-node") == "yes"]
        if {pod.name for pod in chosen} != {pod.name for pod in nodes}:
            yield f"selector: selects {len(chosen)} kinds of pods, and Ray's nodes are {len(nodes)}"
        ports = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
        if ports != {"metrics", "as-metrics", "dash-metrics"}:
            yield f"podMetricsEndpoints: Ray's nodes have metrics, as-metrics and dash-metrics, not {sorted(ports)}"


def _dashboards(config_map: Object) -> Iterator[str]:
    texts = {name: text for name, text in config_map["data"].items() if name.endswith(".json")}
    if texts and config_map["metadata"].get("labels", {}).get("grafana_dashboard") != "1":
        yield 'metadata.labels: Grafana finds dashboards by grafana_dashboard: "1"'
    for name, text in texts.items():
        try:
            json.loads(text)
        except ValueError as error:
            yield f"{name}: no JSON: {error}"


def _rules(rules: Object) -> Iterator[str]:
    if rules["metadata"].get("labels", {}).get("release") is None:
        yield "metadata.labels: without `release` no Prometheus of kube-prometheus-stack takes it"
    alerts = [rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    if len(alerts) > len(set(alerts)):
        yield f"two alerts have one name: {sorted(alerts)}"
    for rule in [rule for group in rules["spec"]["groups"] for rule in group["rules"]]:
        for name in sorted(names_in(rule["expr"]) - exported_names()):
            yield f"{rule['alert']}: nothing exports a metric {name}"
        for name in sorted(unknown_labels(rule["expr"])):
            yield f"{rule['alert']}: its metrics have no label {name}"
        if rule.get("labels", {}).get("severity") not in _SEVERITIES:
            yield f"{rule['alert']}: severity is one of {', '.join(sorted(_SEVERITIES))}"
        if not {"summary", "description"} <= rule.get("annotations", {}).keys():
            yield f"{rule['alert']}: says neither what it is nor what to do"
