"""Accept-if-equal on the CPU, in one call: what `decoding.sampling.rules.verify_coupled` says, with its numbers.

Shapes: B rows, K drafted tokens, J = K + 1 positions.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from decoding.cpu.library import library
from decoding.picked import Picks

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64


class _Inputs(ctypes.Structure):
    """What the kernel reads; the fields are explained in verify.h."""

    _fields_ = [
        *(("num_rows", _INTEGER), ("num_positions", _INTEGER)),
        *((name, _POINTER) for name in ("token_ids", "best", "second", "score", "is_at_border", "drafted")),
        *(("drafted_row_stride", _INTEGER), ("drafted_stride", _INTEGER)),
        *(("num_drafted", _POINTER), ("temperature", _POINTER), ("close_call", ctypes.c_float)),
    ]


def verify_coupled(
    picked: Picks,
    drafted_BK: torch.Tensor,
    num_drafted_B: torch.Tensor,
    temperature_B: torch.Tensor,
    close_call: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return the number of accepted tokens, the token behind them, and the first close call of each row, int64 [B].

    None where torch's own operations must do: without the kernels.
    """
    built = library()
    if built is None:
        return None
    num_rows, num_positions = picked.token_ids_BJ.shape
    assert drafted_BK.shape == (num_rows, num_positions - 1), "one position more than drafted tokens"
    is_at_border_BJ = picked.is_at_border_BJ
    if is_at_border_BJ is None:
        is_at_border_BJ = torch.zeros_like(picked.is_finite_BJ)
    numbers = [tensor.contiguous() for tensor in (*picked[:4], is_at_border_BJ)]
    of_rows = [tensor.contiguous() for tensor in (num_drafted_B, temperature_B)]
    read = _Inputs(
        *(num_rows, num_positions, *(tensor.data_ptr() for tensor in numbers), drafted_BK.data_ptr()),
        *(drafted_BK.stride(0), drafted_BK.stride(1), *(tensor.data_ptr() for tensor in of_rows), close_call),
    )
    found_3B = torch.empty(3, num_rows, dtype=torch.int64)
    first = found_3B.data_ptr()
    _function(built)(read, (_POINTER * 3)(*(first + 8 * num_rows * number for number in range(3))))
    num_accepted_B, next_token_B, first_close_call_B = found_3B
    return num_accepted_B, next_token_B, first_close_call_B


@cache
def _function(built: ctypes.CDLL) -> Callable[..., None]:
    function: Callable[..., None] = built.dray_verify_coupled
    function.argtypes, function.restype = [ctypes.POINTER(_Inputs), _POINTER * 3], None  # type: ignore[attr-defined]
    return function
