"""Rank: this process as one of several that share out every layer of a network, by transformers' tensor parallelism.

All ranks run the same forwards in the same order, each over its share of the heads and of the inner neurons; within a
forward they add up what they have (torch.distributed: NCCL between GPUs, gloo on CPU). Each keeps the keys and values
of its own heads, so a slot cache holds for shared-out layers as it does for whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding.device import Device, pick_device

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def open_meeting_place(num_ranks: int) -> TCPStore:
    """Where so many ranks of this host meet: `meet` its `port`. It ends with the process that holds it."""
    return TCPStore("127.0.0.1", 0, num_ranks, is_master=True, wait_for_workers=False)


def meet(port: int, rank: int, num_ranks: int, device: Device, timeout_s: float) -> None:
    """Return when all ranks have met, each on a device of its own (the first that this process sees).

    In a forward, a rank waits so long for the others, and then raises. Raises ValueError where `device` is not what
    torch would share layers out over.
    """
    place, shared = pick_device(device).type, torch._C._get_accelerator().type
    if place not in _BACKENDS or place != shared:
        raise ValueError(
            f"stages.tensor_parallel is {num_ranks} and the device {place!r}, but here torch shares layers out over "
            f"{shared!r} devices; run them there, or use stages.count"
        )
    if place == "cuda":
        torch.cuda.set_device(0)
    distributed.init_process_group(
        _BACKENDS[place],
        store=TCPStore("127.0.0.1", port, num_ranks, is_master=False),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=timeout_s),
    )


def check_can_be_shared_out(config: PretrainedConfig, name: str, num_ranks: int) -> None:
    """Raise ValueError for a model whose layers cannot be shared out over so many ranks."""
    text_config: Any = config.get_text_config()
    head = getattr(AutoModelForCausalLM._model_mapping[type(config)], "_tp_plan", None)
    if not isinstance(text_config.base_model_tp_plan, Mapping) and not head:
        raise ValueError(
            f"{name!r} ({config.model_type}) has no plan by which transformers could share its layers out; use "
            "stages.tensor_parallel 1, and stages.count for a model that is too large"
        )
    for field in ("num_attention_heads", "num_key_value_heads"):
        num_heads = getattr(text_config, field, None)
        if isinstance(num_heads, int) and num_heads % num_ranks:
            raise ValueError(
                f"{name!r} cannot be shared out over {num_ranks} processes (stages.tensor_parallel): {field} is "
                f"{num_heads}, which is no multiple of it"
            )


def own(parameter: torch.Tensor) -> torch.Tensor:
    """What of a parameter lies in this process."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
