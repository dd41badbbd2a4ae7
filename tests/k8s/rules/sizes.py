"""How much there is of what: nodes against engines, and workers against the quota of the namespace."""

from collections.abc import Iterator
from typing import Any

import yaml
from ray.autoscaler._private.kuberay.utils import parse_quantity

from tests.k8s.manifests import Object, cluster_spec, groups
from tests.k8s.rules.known import GPU

WEIGHTS_GIB = {
    "Qwen/Qwen3-32B": 61.03,
    "Qwen/Qwen3-8B": 15.26,
    "Qwen/Qwen3-0.6B": 1.11,
}  # in bfloat16: test_gpu_memory.py
_SECTIONS = {"input", "output", "models", "actors"}  # of a run's configuration


def problems_with(ray: Object, config: Any) -> Iterator[str]:
    """Yield the problems of a Ray object's sizes; `config` is that of its run or of its endpoint, or None."""
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


def _limit(group: Object, name: str) -> float:
    return float(parse_quantity(group["template"]["spec"]["containers"][0]["resources"]["limits"].get(name, "0")))


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
