"""Rank: this process as one of several that shard every layer of a network, by transformers' tensor parallelism.

All ranks run the same forwards in the same order, each over its share of the heads and of the inner neurons; within a
forward they sum their partial results (torch.distributed: NCCL between GPUs, gloo on CPU), in one order where our own
layers run (`decoding/ranks`). Each rank keeps the keys and
values of the heads that it computes, so a slot cache works for sharded layers as it does for whole ones.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not declared so
from transformers import PretrainedConfig

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.model_files import is_packed
from decoding.choices import Exact
from decoding.device import Device, pick_device

# Model types for which tests/decoding/checkpoint/test_rank.py shows that sharded layers compute what whole layers
# compute. A measurement at load could not find a wrong plan of transformers: it has no whole model to compare with.
_DENSE = {"gemma2", "gemma3_text", "gpt_neox", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"}
_MIXTURES_OF_EXPERTS = {"mixtral", "qwen3_moe"}
SHARDABLE_MODEL_TYPES = frozenset(_DENSE | _MIXTURES_OF_EXPERTS)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def open_rank_store(num_ranks: int) -> TCPStore:
    """Open the store through which `num_ranks` ranks of this host meet, at its `port`; it ends with this process.

    Every process that reaches the port may read and write there, as with all process groups of torch.distributed.
    """
    return TCPStore("127.0.0.1", 0, num_ranks, is_master=True, wait_for_workers=False)


def meet(port: int, rank: int, num_ranks: int, device: Device, timeout_s: float) -> None:
    """Return when all ranks have met, each on a device of its own (the first that this process sees).

    Here and in every forward a rank waits `timeout_s` for the others, then raises. Raises ValueError if torch would not
    shard layers over `device`.
    """
    check_device(device, num_ranks)
    place = pick_device(device)
    os.environ["LOCAL_RANK"] = "0"  # transformers takes the device of this number; each process sees only its own
    if place.type == "cuda":
        torch.cuda.set_device(0)
    distributed.init_process_group(
        _BACKENDS[place.type],
        store=TCPStore("127.0.0.1", port, num_ranks, is_master=False),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=timeout_s),
    )


def check_device(device: Device, num_ranks: int) -> None:
    """Raise ValueError if torch would shard layers over another kind of device than this one."""
    place, shared = pick_device(device).type, torch._C._get_accelerator().type
    if place not in _BACKENDS or place != shared:
        raise ValueError(
            f"stages.tensor_parallel is {num_ranks} and the device is {place!r}, but this torch "
            f"({torch.__version__}) was built to share layers out over {shared!r} devices: CPU ranks need a CPU build "
            "of torch; or use stages.count"
        )


def check_can_be_sharded(config: PretrainedConfig, name: str, num_ranks: int) -> None:
    """Raise ValueError for a model, in the folder `name`, whose layers cannot be sharded over `num_ranks` ranks."""
    if fp8_format(config) is not None or is_packed(name):
        raise ValueError(
            f"{name!r} has FP8 or packed weights, whose layers are not shared out among processes; use "
            "stages.tensor_parallel 1, and stages.count for a model that is too large"
        )
    text_config: Any = config.get_text_config()
    if text_config.model_type not in SHARDABLE_MODEL_TYPES:
        raise ValueError(
            f"{name!r} ({text_config.model_type}) is of a type whose layers are not known to compute the same when "
            f"they are shared out (known: {', '.join(sorted(SHARDABLE_MODEL_TYPES))}); use stages.tensor_parallel 1, "
            "and stages.count for a model that is too large"
        )
    plan: Mapping[str, str] = text_config.base_model_tp_plan or {}
    projections = ("q_proj", "k_proj", "qkv_proj", "query_key_value")
    if not any(rule.rsplit(".", 1)[-1] in projections and style == "colwise" for rule, style in plan.items()):
        return  # each rank gathers queries, keys and values again
    for field in ("num_attention_heads", "num_key_value_heads"):
        num_heads = getattr(text_config, field, None)
        if isinstance(num_heads, int) and num_heads % num_ranks:
            raise ValueError(
                f"{name!r} cannot be shared out over {num_ranks} processes (stages.tensor_parallel): {field} is "
                f"{num_heads}, which is no multiple of it"
            )


def check_exact_ranks(name: str, num_ranks: int, dtype: str, exact: Exact, why: str) -> None:
    """Raise ValueError for ranks in 16 bits whose sums follow the batch, unless `engine.exact` gives that up.

    `why` says why they do.
    """
    if num_ranks > 1 and dtype not in ("auto", "float32") and exact != "off":
        raise ValueError(
            f"{name!r} is shared out over {num_ranks} processes (stages.tensor_parallel) in {dtype}, where its text "
            f"would depend on the batch ({why}); use models.dtype float32, or stages.count and stages.tensor_parallel "
            "1, or set engine.exact to 'off' to accept that"
        )
