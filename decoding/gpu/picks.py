"""Picks on the GPU: two kernels pick the tokens of all rows and positions, whatever their parameters are.

Nothing here waits for the device, and no launch and no allocation depends on numbers that are on it. So a pick may be
recorded in a CUDA graph: all that a pick reads is in tensors (`PickInputs`), and a replay reads what is in them then.

Shapes: B rows, J positions, P = B x J, V vocabulary, K drafted tokens, N blocks of 64 tokens, C chunks of blocks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from decoding.gpu.pick_table import PickTable
from decoding.noise import BLOCK
from decoding.picked import Picks

_CHUNK = 32  # blocks that one program summarizes: 2,048 tokens
_PART = 1024  # blocks that a program of `pick` looks at at a time
_GROUP = 32  # blocks that a program reads at a time, for each of its positions


class Counted(NamedTuple):
    """How often the text so far has each token: what penalties need of the tokens that are committed."""

    counts_RV: torch.Tensor  # int32: twice the occurrences in the output, and 1 if the prompt has the token
    rows_B: torch.Tensor  # which of these rows belongs to a row of the batch, int64; anything for one without penalties


@dataclass(frozen=True)
class PickInputs:
    """What the kernels read beside the logits, all on the device."""

    table: PickTable
    biases_RV: torch.Tensor  # `table.biases_of(vocab_size)`
    lengths_B: torch.Tensor  # committed tokens of each row, int64
    drafted_BK: torch.Tensor  # tokens behind the committed ones, int64; read where a row has penalties
    counted: Counted | None  # how often the committed tokens occur; None: no row has penalties

    def __post_init__(self) -> None:
        """Refuse tensors that the kernels, which have only addresses, would read in other places."""
        assert len(self.table.columns_BC) == len(self.lengths_B) == len(self.drafted_BK), "all are of the same rows"
        assert self.table.columns_BC.is_contiguous()
        assert self.lengths_B.is_contiguous()
        assert self.drafted_BK.stride(1) == 1 or self.drafted_BK.shape[1] <= 1
        assert self.counted is not None or not any(self.table.uses_counts), "penalties need counts"


@torch.no_grad()
def pick(logits_BJV: torch.Tensor, inputs: PickInputs, first: int) -> Picks:
    """Pick at the J positions from `first` on, from raw logits of any float type; the last dimension must be dense.

    Position j is token number `lengths + first + j`; the first `first + j` of the drafted tokens (or all, if they are
    fewer) stand between it and the committed ones. A row's result is a function of its own logits,
    parameters, tokens and positions, bit for bit, whatever else is in the batch.
    """
    from decoding.gpu.kernels import picks as kernels  # only where Triton is installed

    num_rows, num_positions, vocab_size = logits_BJV.shape
    assert num_rows == len(inputs.lengths_B), "the logits are of the rows of the table"
    assert logits_BJV.stride(2) == 1 or vocab_size == 1, "a token's logit stands beside the next one's"
    device, num_places = logits_BJV.device, num_rows * num_positions
    num_blocks = -(-vocab_size // BLOCK)
    num_chunks = -(-num_blocks // _CHUNK)
    block_max_PN = torch.empty(num_places, num_blocks, dtype=torch.float32, device=device)
    chunk_max_PC = torch.empty(num_places, num_chunks, dtype=torch.float32, device=device)
    chunk_sum_PC = torch.empty(num_places, num_chunks, dtype=torch.int64, device=device)
    to_read_PN = torch.empty(num_places, num_blocks, dtype=torch.int32, device=device)
    token_ids_BJ = torch.empty(num_rows, num_positions, dtype=torch.int64, device=device)
    values_3BJ = torch.empty(3, num_rows, num_positions, dtype=torch.float32, device=device)
    is_finite_BJ = torch.empty(num_rows, num_positions, dtype=torch.bool, device=device)

    columns_BC, drafted_BK, counted = inputs.table.columns_BC, inputs.drafted_BK, inputs.counted
    if counted is None:  # the kernels ask for pointers, and follow only those that a row's parameters name
        counted = Counted(torch.empty(0, dtype=torch.int32, device=device), inputs.lengths_B)
    shared: tuple[torch.Tensor | int, ...] = (
        *(logits_BJV, logits_BJV.stride(0), logits_BJV.stride(1)),
        *(columns_BC, inputs.biases_RV, *counted),
        *(drafted_BK, drafted_BK.stride(0), drafted_BK.shape[1], inputs.lengths_B),
        *(block_max_PN, chunk_max_PC, chunk_sum_PC),
    )
    sizes = (vocab_size, num_positions, first, inputs.table.num_stop_ids)
    kernels.summarize[num_places, num_chunks](
        *shared, *sizes, CHUNK=_CHUNK, num_warps=8, maxnreg=128, enable_fp_fusion=False
    )
    kernels.pick[num_places,](
        *(*shared, to_read_PN, token_ids_BJ, values_3BJ, is_finite_BJ, *sizes, num_chunks),
        MAX_BLOCKS=_power_of_two(num_blocks),
        MAX_CHUNKS=_power_of_two(num_chunks),
        PART=_PART,
        GROUP=_GROUP,
        num_warps=16,
        num_stages=1,
        maxnreg=128,  # all that 16 warps can have; without a word the assembler may take 64, and spill
        enable_fp_fusion=False,
    )
    best_BJ, second_BJ, score_BJ = values_3BJ
    return Picks(token_ids_BJ, best_BJ, second_BJ, score_BJ, is_finite_BJ)


def _power_of_two(number: int) -> int:
    return max(2, 1 << (number - 1).bit_length())
