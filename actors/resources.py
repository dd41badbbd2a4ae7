"""From what a run asks for to what its actors hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from actors.settings import GeneratorSettings
from decoding.device import Device
from pipeline.dataset import ActorPool

_ROUNDING = 1e-6  # a tenth fits ten times into 1


def settle_device(device: Device, pool: ActorPool, num_cluster_gpus: float) -> tuple[Literal["cpu", "cuda"], ActorPool]:
    """The device that `auto` means on this cluster, and the pool with the GPUs that it takes.

    Raises ValueError where a GPU is asked for and the cluster has none now; an autoscaling cluster that starts without
    GPU nodes says device 'cuda' and num_gpus itself.
    """
    if device == "auto":
        device = "cuda" if num_cluster_gpus > 0 or pool.num_gpus > 0 else "cpu"
    if device == "cpu":
        if pool.num_gpus:
            raise ValueError(f"models.device is 'cpu' and actors.num_gpus is {pool.num_gpus}; drop one of them")
        return "cpu", pool
    if pool.num_gpus:
        return "cuda", pool
    if num_cluster_gpus == 0:
        raise ValueError(
            "models.device is 'cuda' and the cluster has no GPU now; use device 'cpu', or set actors.num_gpus "
            "if the cluster adds GPU nodes when they are asked for"
        )
    return "cuda", replace(pool, num_gpus=1.0)


def shortage(pool: ActorPool, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """What these nodes (as `ray.nodes` lists them) lack for the actors that the pool asks for at once; None: nothing.

    It counts what the nodes have in all, whoever uses it. Label selectors with operators (`!x`, `in(x, y)`) are taken
    to fit every node.
    """
    selectors = [pool.label_selector, *pool.fallback_label_selectors]
    alive = [node for node in nodes if node["Alive"]]
    fitting = [node for node in alive if any(_fits(node, selector) for selector in selectors)]
    if not fitting:
        return f"no node has the labels {dict(pool.label_selector)}"
    demand = {name: amount for name, amount in pool.demand.items() if amount}
    room = {
        name: [math.floor(node["Resources"].get(name, 0.0) / amount + _ROUNDING) for node in fitting]
        for name, amount in demand.items()
    }
    num_wanted, num_fit = pool.num_at_once, sum(min(counts) for counts in zip(*room.values(), strict=True))
    if num_fit >= num_wanted:
        return None
    lacking = [name for name, counts in room.items() if sum(counts) < num_wanted] or list(demand)
    needs = ", ".join(f"{demand[name]:g} {name}" for name in demand)
    has = ", ".join(f"{sum(node['Resources'].get(name, 0.0) for node in fitting):g} {name}" for name in lacking)
    where = f" on the {len(fitting)} nodes that fit" if len(fitting) < len(alive) else ""
    return f"there is room for {num_fit} of {num_wanted} actors: each takes {needs} and there is {has}{where}"


def describe_placement(settings: GeneratorSettings, pool: ActorPool) -> str:
    """Where target and draft model stand, for a person."""
    num_stages = settings.stages.count
    target = "one actor" if num_stages == 1 else f"{num_stages} stages and an actor that drives them"
    if settings.placement == "colocated":
        return "colocated (all models of an engine in one actor)" if num_stages == 1 else f"target in {target}"
    drafts = settings.drafts
    shared = f"{drafts.num_per_generator} for each engine"
    if drafts.num_sharing > 1:
        shared = f"1 for {drafts.num_sharing} engines"
    most = -(-pool.max_actors * drafts.num_per_generator // drafts.num_sharing)
    holds = ", ".join(f"{amount:g} {name}" for name, amount in drafts.demand.items()) or "nothing"
    return f"split, target in {target}, draft actors: {shared}, at most {most}, each with {holds} ({drafts.strategy})"


def _fits(node: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    labels = node.get("Labels") or {}
    return all(labels.get(key) == value for key, value in selector.items() if "(" not in value and "!" not in value)
