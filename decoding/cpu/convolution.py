"""The short convolution of packed rows on CPU; kernels/convolution.h explains it, its shapes and the fields."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from decoding.cpu.library import function
from decoding.cpu.recurrence import StateRows

_NAMES = {torch.float32: "dray_convolve_float32", torch.bfloat16: "dray_convolve_bfloat16"}


class _Convolution(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("num_rows", "num_channels", "size", "has_silu")],
        *[(name, ctypes.c_void_p) for name in ("row_first", "read", "written", "weight", "bias")],
    ]


@cache
def kernel(dtype: torch.dtype) -> Callable[..., None] | None:
    """Return the kernel for numbers of this type; None if there is none."""
    pointers = 3 * [ctypes.c_void_p]
    return function(_NAMES[dtype], None, ctypes.POINTER(_Convolution), *pointers) if dtype in _NAMES else None


def convolve(
    rows: StateRows,
    windows_ETC: torch.Tensor,
    x_NC: torch.Tensor,
    weight_CT: torch.Tensor,
    bias_C: torch.Tensor | None,
    *,
    has_silu: bool,
) -> torch.Tensor:
    """Return the convolution [N, C] of packed tokens with the windows [E, T - 1, C] before them; keep those behind."""
    run = kernel(x_NC.dtype)
    assert run is not None, "only numbers of a type that has a kernel come here"
    x_NC, weight_TC = x_NC.contiguous(), weight_CT.to(torch.float32).t().contiguous()
    bias_C = None if bias_C is None else bias_C.to(torch.float32).contiguous()
    out_NC = torch.empty_like(x_NC)
    packed = _Convolution(
        *(len(rows[1]), x_NC.shape[1], len(weight_TC), int(has_silu)),
        *(each.data_ptr() for each in (*rows, weight_TC)),
        None if bias_C is None else bias_C.data_ptr(),
    )
    run(ctypes.byref(packed), x_NC.data_ptr(), windows_ETC.data_ptr(), out_NC.data_ptr())
    return out_NC
