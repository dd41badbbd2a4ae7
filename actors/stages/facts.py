"""StageFacts: what a stage reports about itself."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import torch

from decoding.cache.prefill import Piece, may_join_batch


@dataclass(frozen=True)
class StageFacts:
    """What is true of a stage now: it may be made faster, or slower again."""

    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device_name: str  # "cpu", or the GPU's name
    max_positions: int | None
    vocab_size: int | None  # None where there is no head
    num_weight_bytes: int  # of this process, where ranks share the stage out
    packs_rows: bool  # or the model sees a rectangle
    is_fused: bool  # our own layers run
    runs_kernels: bool  # and our own attention in them
    is_batch_invariant: bool
    window: int  # that the model file cuts by itself; 0 if there is none


def fits_beside(facts: Seq[StageFacts]) -> Callable[[list[int], list[Piece]], bool]:
    """Return the test that `batches` asks for: whether a row may be beside longer ones in a forward of these stages."""
    return partial(
        may_join_batch,
        packs_rows=all(stage.packs_rows for stage in facts),
        is_fused=all(stage.runs_kernels for stage in facts),
    )
