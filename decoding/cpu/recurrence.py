"""The recurrence of packed rows on CPU; kernels/recurrence.h explains the formula, its shapes and the fields."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from decoding.cpu.library import function

# Of B packed rows with N tokens in all, int64: the first token of each [B + 1], the entry of the state before it [B]
# (-1: there is none, and it is zero), and the entry for the state behind each token [N] (-1: it is not kept).
StateRows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Recurrence(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("num_rows", "num_heads", "num_key_heads", "key_size", "value_size")],
        *[(name, ctypes.c_int64) for name in ("has_decay_of_keys", "is_delta")],
        *[(name, ctypes.c_void_p) for name in ("row_first", "read", "written", "query", "key", "value")],
        *[(name, ctypes.c_void_p) for name in ("decay", "beta", "states")],
    ]


@cache
def kernel() -> Callable[..., None] | None:
    """Return the kernel; None if there is no compiler."""
    return function("dray_recur", None, ctypes.POINTER(_Recurrence), ctypes.c_void_p)


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
    run = kernel()
    assert run is not None, "only a network with kernels runs packed"
    num_tokens, num_heads, value_size = value_NHV.shape
    given = [query_NGK, key_NGK, value_NHV, decay, *([] if beta_NH is None else [beta_NH])]
    inputs = [each.to(torch.float32).contiguous() for each in given]
    query, key, value, decay = inputs[:4]
    out_NHV = torch.empty(num_tokens, num_heads, value_size)
    packed = _Recurrence(
        *(len(rows[1]), num_heads, key.shape[1], key.shape[2], value_size),
        *(int(decay.dim() == 3), int(beta_NH is not None)),
        *(each.data_ptr() for each in (*rows, query, key, value, decay)),
        None if beta_NH is None else inputs[4].data_ptr(),
        states_EHKV.data_ptr(),
    )
    run(ctypes.byref(packed), out_NHV.data_ptr())
    return out_NHV
