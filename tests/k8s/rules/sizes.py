"""How much there is of what: memory against models, nodes against actors, everything against the quota."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import IMAGE_HOME, ROOT, Object, cluster_spec, groups
from tests.k8s.rules.known import GPU

_GIB = 2**30
WEIGHTS_GIB = {
    "Qwen/Qwen3-32B": 61.03,
    "Qwen/Qwen3-8B": 15.26,
    "Qwen/Qwen3-0.6B": 1.11,
}  # in bfloat16: test_gpu_memory.py
# Floors by which a wrong unit is found, not needs: docs/log.md has what the commands took where they were measured.
_PROGRAMS_GIB = 3.0  # Ray's processes on a node, and an engine's Python with its libraries
_HEAD_GIB = {True: 8.0, False: 2.0}  # with GPU workers, and for the demo's two CPUs
_SECTIONS = {"input", "output", "models", "actors"}  # of a run's configuration
LEAST_GIB = {"submitter": 0.5, "autoscaler": 0.5, "job": 1.0}


def problems_with(ray: Object, config: Any) -> Iterator[str]:
    """Yield the problems of a Ray object's sizes; `config` is that of its run or of its endpoint, or None."""
    spec = cluster_spec(ray)
    has_gpus = any(_limit(group, GPU) for _, group in groups(ray))
    for name, group in groups(ray):
        memory, least = _limit(group, "memory") / _GIB, _HEAD_GIB[has_gpus]
        if name != "head":
            least = _PROGRAMS_GIB + (sum(map(_weights_gib, _models(config, group))) if config and has_gpus else 0.0)
            least = least - 0.5 if not has_gpus else least
        if has_gpus:
            least += _shared_memory(group) / _GIB
        cpus, least_cpus = _limit(group, "cpu"), max(_limit(group, GPU), 2.0 if has_gpus else 0.5)
        if cpus < least_cpus:
            yield f"{name}: {cpus:g} CPUs, and its programs take {least_cpus:g}: one for each GPU"
        if memory < least:
            yield f"{name}: {memory:g} GiB of memory, and its programs and weights take {least:.1f}"
    if "autoscalerOptions" in spec:
        memory = parse_quantity(spec["autoscalerOptions"]["resources"]["limits"]["memory"])
        if memory < LEAST_GIB["autoscaler"] * _GIB:
            yield f"autoscaler: {memory} bytes of memory, and it takes {LEAST_GIB['autoscaler']} GiB"
    if config is not None:
        yield from _room(ray, config)
        for model in models_of(config):
            if not model.startswith("/") and model not in WEIGHTS_GIB:
                yield f"no model {model!r} is known here; if it is one, sizes.py needs its weights"


def problems_with_quota(rays: list[Object], quota: Object) -> Iterator[str]:
    """Yield the Ray objects that alone would not fit into a quota of the namespace."""
    hard = quota["spec"]["hard"]
    for ray in rays:
        workers = [(group, _most(ray, group)) for name, group in groups(ray) if name != "head"]
        asked = {f"requests.{GPU}": sum(_limit(group, GPU) * count for group, count in workers)}
        asked["pods"] = 2 + sum(count for _, count in workers)  # the head, the submitter
        for name, amount in asked.items():
            if name in hard and amount > parse_quantity(hard[name]):
                yield f"{ray['metadata']['name']}: may take {amount:g} of {name}, and the quota is {hard[name]}"


def models_of(config: Any) -> list[str]:
    """Return the names of the models in a configuration."""
    return [config["models"][name] for name in ("target", "draft") if config["models"].get(name)]


def _models(config: Any, group: Object) -> list[str]:
    """Return the models that a worker of a group loads: with placement `split` its label says which."""
    role = group.get("labels", {}).get("dray-role")
    return [config["models"][role]] if role else models_of(config)


def _weights_gib(model: str) -> float:
    if model.startswith(IMAGE_HOME):
        folder = ROOT / model.removeprefix(f"{IMAGE_HOME}/")
        return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / _GIB
    return WEIGHTS_GIB.get(model, 0.0)


def _limit(group: Object, name: str) -> float:
    return float(parse_quantity(group["template"]["spec"]["containers"][0]["resources"]["limits"].get(name, "0")))


def _shared_memory(group: Object) -> float:
    volumes = [each.get("emptyDir", {}) for each in group["template"]["spec"].get("volumes", [])]
    return float(sum(parse_quantity(each.get("sizeLimit", "0")) for each in volumes if each.get("medium") == "Memory"))


def _most(ray: Object, group: Object) -> int:
    return int(group["maxReplicas"] if cluster_spec(ray).get("enableInTreeAutoscaling") else group["replicas"])


def _room(ray: Object, config: Any) -> Iterator[str]:
    """All engines of a run, or of an endpoint and one of an update, find room on the most nodes that there may be."""
    device = "GPU" if config["models"].get("device") == "cuda" else "CPU"
    if "serve" in config:
        count, each, labels = config["serve"]["max_replicas"] + 1, config["serve"].get("num_gpus", 0), {}
    else:
        actors, stages = config["actors"], config.get("stages", {})
        count, labels = actors["max_actors"], actors.get("label_selector", {})
        each = actors.get("num_gpus", 0) if device == "GPU" else actors.get("num_cpus", 1)
        if stages:
            largest = max(_limit(group, GPU) for name, group in groups(ray) if name != "head")
            together = stages.get("num_gpus", 1) * stages.get("count", 1) * stages.get("tensor_parallel", 1)
            if stages.get("strategy") == "STRICT_PACK" and together > largest:
                yield f"stages: {together:g} GPUs of one machine, and a worker has {largest:g}"
            each += stages.get("num_gpus", 1) * stages.get("count", 1) * stages.get("tensor_parallel", 1)
    yield from _finds_room(ray, "engines", count, each, device, labels)
    if config.get("placement") == "split":
        drafts = config["drafts"]
        number = count * drafts.get("per_target", 1)
        yield from _finds_room(ray, "draft actors", number, drafts.get("num_gpus", 0), "GPU", drafts["label_selector"])


def _finds_room(
    ray: Object, what: str, count: float, each: float, device: str, labels: dict[str, str]
) -> Iterator[str]:
    name = GPU if device == "GPU" else "cpu"
    workers = [group for group_name, group in groups(ray) if group_name != "head"]
    matching = [group for group in workers if labels.items() <= group.get("labels", {}).items()]
    total = sum(_limit(group, name) * _most(ray, group) for group in matching)
    if count * each > total:
        yield f"{count:g} {what} of {each:g} {device} each with labels {labels} do not fit: their nodes have {total:g}"


def config_of(ray: Object, config_maps: dict[str, Object]) -> Any:
    """Return the configuration of a RayJob's run or of a RayService's application; None if there is no whole one."""
    texts = [text for each in config_maps.values() for text in each.get("data", {}).values()]
    try:
        if ray["kind"] == "RayService":
            config = yaml.safe_load(ray["spec"]["serveConfigV2"])["applications"][0]["args"]
            return config if isinstance(config["serve"]["max_replicas"], int) and config["models"] else None
        config = yaml.safe_load(texts[0]) if ray["kind"] == "RayJob" and texts else None
    except (yaml.YAMLError, KeyError, TypeError):  # texts.py reports it
        return None
    return config if isinstance(config, dict) and config.keys() >= _SECTIONS else None
