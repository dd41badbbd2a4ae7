"""Resources of a cluster, compared with what a run asks for; and the node on which this process runs."""

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.settings import GeneratorSettings
from decoding.choices import Device
from pipeline.streaming.pool import ActorPool, ActorResources

_Actors = TypeVar("_Actors", bound=ActorResources)
_ROUNDING = 1e-6  # a tenth fits ten times into 1


def settle_device(device: Device, actors: _Actors, num_cluster_gpus: float) -> tuple[Literal["cpu", "cuda"], _Actors]:
    """Return the device that `auto` means on this cluster, and the actors with the GPUs that they then hold.

    Raises ValueError if a GPU is asked for and the cluster has none now; for an autoscaling cluster that starts without
    GPU nodes, the configuration names device 'cuda' and num_gpus itself.
    """
    if device == "auto":
        device = "cuda" if num_cluster_gpus > 0 or actors.num_gpus > 0 else "cpu"
    name = f"{actors.section}.num_gpus"
    if device == "cpu":
        if actors.num_gpus:
            raise ValueError(f"models.device is 'cpu' and {name} is {actors.num_gpus}; drop one of them")
        return "cpu", actors
    if actors.num_gpus:
        return "cuda", actors
    if num_cluster_gpus == 0:
        raise ValueError(
            f"models.device is 'cuda' and the cluster has no GPU now; use device 'cpu', or set {name} "
            "if the cluster adds GPU nodes when they are asked for"
        )
    return "cuda", replace(actors, num_gpus=1.0)


@dataclass(frozen=True)
class _Kind:
    """Processes of one kind that a run asks for at once."""

    noun: str
    num_wanted: int
    demand: Mapping[str, float]  # of each
    selectors: Seq[Mapping[str, str]]


def shortage(pool: ActorPool, nodes: Seq[Mapping[str, Any]], settings: GeneratorSettings | None = None) -> str | None:
    """Return what these nodes (as `ray.nodes` lists them) lack for the actors that the pool asks for at once, or None.

    With `settings` it counts the stages and draft actors of each engine, too. All resources of a node count, also those
    in use. Label selectors with operators (`!x`, `in(x, y)`) are taken to fit every node.
    """
    alive = [node for node in nodes if node["Alive"]]
    parts = [_Kind("actors", pool.num_at_once, pool.demand, [pool.label_selector, *pool.fallback_label_selectors])]
    for part in settings.apart if settings is not None else []:
        parts.append(_Kind(part.noun, part.num_for(pool.num_at_once), part.bundle, [part.label_selector]))
    lacks = (_lack(part, alive) for part in parts)
    return next((lack for lack in lacks if lack is not None), None) or _lack_together(parts, alive)


def lack_of_room(noun: str, num_wanted: int, demand: Mapping[str, float], nodes: Seq[Mapping[str, Any]]) -> str | None:
    """Return what these nodes lack for `num_wanted` processes with this demand, or None; `noun` is their name."""
    return _lack(_Kind(noun, num_wanted, demand, [{}]), [node for node in nodes if node["Alive"]])


def _lack(part: _Kind, alive: Seq[Mapping[str, Any]]) -> str | None:
    """Return what is missing for the processes of one kind alone."""
    fitting = [node for node in alive if any(_fits(node, selector) for selector in part.selectors)]
    if not fitting:
        return f"no node has the labels {dict(part.selectors[0])}"
    demand = {name: amount for name, amount in part.demand.items() if amount}
    if not demand:
        return None
    room = {
        name: [math.floor(node["Resources"].get(name, 0.0) / amount + _ROUNDING) for node in fitting]
        for name, amount in demand.items()
    }
    num_wanted, num_fit = part.num_wanted, sum(min(counts) for counts in zip(*room.values(), strict=True))
    if num_fit >= num_wanted:
        return None
    lacking = [name for name, counts in room.items() if sum(counts) < num_wanted] or list(demand)
    needs = ", ".join(f"{demand[name]:g} {name}" for name in demand)
    has = ", ".join(f"{sum(node['Resources'].get(name, 0.0) for node in fitting):g} {name}" for name in lacking)
    where = f" on the {len(fitting)} nodes that fit" if len(fitting) < len(alive) else ""
    return f"there is room for {num_fit} of {num_wanted} {part.noun}: each takes {needs} and there is {has}{where}"


def _lack_together(parts: Seq[_Kind], alive: Seq[Mapping[str, Any]]) -> str | None:
    """Return what is missing for all kinds together, as far as the sums tell."""
    for name in dict.fromkeys(name for part in parts for name in part.demand):
        wanted = sum(part.num_wanted * part.demand.get(name, 0.0) for part in parts)
        has = sum(node["Resources"].get(name, 0.0) for node in alive)
        if wanted > has + _ROUNDING:
            takes = " and ".join(
                f"{part.num_wanted} {part.noun} {part.num_wanted * part.demand[name]:g}"
                for part in parts
                if part.demand.get(name)
            )
            return f"{takes} {name}, which is {wanted:g} in all, and there is {has:g} {name}"
    return None


def describe_placement(settings: GeneratorSettings, max_engines: int) -> str:
    """Return for a reader where target and draft model run."""
    if not settings.apart:
        return "colocated (all models of an engine in one actor)"
    target = f"{settings.stages.where} and an actor that drives them" if settings.stages.is_apart else "one actor"
    if not settings.has_draft_actors:
        return f"target in {target}"
    drafts = settings.drafts
    is_shared, most = drafts.num_sharing > 1, drafts.num_for(max_engines)
    shared = f"1 for {drafts.num_sharing} engines" if is_shared else f"{drafts.num_per_generator} for each engine"
    holds = ", ".join(f"{amount:g} {name}" for name, amount in drafts.demand.items()) or "nothing"
    return f"split, target in {target}, draft actors: {shared}, at most {most}, each with {holds} ({drafts.strategy})"


def on_this_node(actor_class: type, **options: Any) -> Any:
    """Return a class of actors that take no CPU and live on this node.

    Ray repeats the calls whose connection broke before the answer came, so they must be safe to repeat.
    """
    # Not `soft`: an actor without CPUs would then be placed on any node, and die with it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(actor_class).options(num_cpus=0, max_task_retries=-1, scheduling_strategy=here, **options)


def _fits(node: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    labels = node.get("Labels") or {}
    return all(labels.get(key) == value for key, value in selector.items() if "(" not in value and "!" not in value)
