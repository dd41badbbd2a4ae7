"""StageFacts: what a stage says of itself."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import torch

from decoding.prefill import Piece, may_go_with


@dataclass(frozen=True)
class StageFacts:
    """What there is to know of a stage."""

    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device_name: str  # "cpu", or the GPU's name
    max_positions: int | None
    vocab_size: int | None  # None where there is no head
    num_layers: int
    num_weight_bytes: int
    packs_rows: bool
    is_fused: bool
    runs_kernels: bool
    is_batch_invariant: bool
    num_all_layers: int
    window: int  # that the model file cuts by itself; 0 if there is none
    node_id: str


def goes_with(facts: Seq[StageFacts]) -> Callable[[list[int], list[Piece]], bool]:
    """Whether a row may stand beside longer ones in a forward of these stages, as `batches` asks it."""
    return partial(
        may_go_with,
        packs_rows=all(stage.packs_rows for stage in facts),
        is_fused=all(stage.runs_kernels for stage in facts),
    )
