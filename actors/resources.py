"""From what a run asks for to what its actors hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from decoding.device import Device
from pipeline.dataset import ActorPool


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
