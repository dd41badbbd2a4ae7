"""The recurrence of packed rows by our Triton kernel; `decoding/cpu/recurrence.py` is its like on a CPU.

A token's numbers are the same, bit for bit, in any batch and however its row was cut: the sizes of a program are those
of the model.
"""

import torch

from decoding.gpu.kernels import recurrence as kernels

# Of B packed rows with N tokens in all, int64: the first token of each [B + 1], the entry of the state before it [B]
# (-1: there is none, and it is zero), and the entry for the state behind each token [N] (-1: it is not kept).
StateRows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_VALUES = 32  # columns of a program: with 128 keys it holds 4,096 numbers
_NUM_WARPS = 4


def recur(
    rows: StateRows,
    states_EHKV: torch.Tensor,
    query_NGK: torch.Tensor,
    key_NGK: torch.Tensor,
    value_NHV: torch.Tensor,
    decay: torch.Tensor,
    beta_NH: torch.Tensor | None,
) -> torch.Tensor:
    """Advance states in place; return what the tokens read of them, [N, H, V] in float32.

    `decay`, between 0 and 1, is [N, H], or [N, H, K] of each key; with `beta_NH` it is a delta rule.
    """
    given = (query_NGK, key_NGK, value_NHV, decay, decay if beta_NH is None else beta_NH)
    inputs = [each.to(torch.float32).contiguous() for each in given]
    (_, num_heads, value_size), (num_key_heads, key_size) = value_NHV.shape, key_NGK.shape[1:]
    out_NHV = torch.empty(value_NHV.shape, dtype=torch.float32, device=value_NHV.device)
    grid = len(rows[1]), num_heads, -(-value_size // _VALUES)
    kernels.recur[grid](
        *inputs,
        *(states_EHKV, *rows, out_NHV),
        *(num_heads, num_key_heads, key_size, value_size),
        KEYS=max(16, 1 << (key_size - 1).bit_length()),
        VALUES=_VALUES,
        HAS_DECAY_OF_KEYS=decay.dim() == 3,
        IS_DELTA=beta_NH is not None,
        num_warps=_NUM_WARPS,
        enable_fp_fusion=False,
    )
    return out_NHV
