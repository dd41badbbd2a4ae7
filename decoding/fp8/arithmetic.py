"""Arithmetic: who rounds activations to FP8 and multiplies them, on each device.

Shapes: N lines, I inputs, O outputs, G groups of inputs, S rows of scales.
"""

import logging
from typing import Protocol

import torch

from decoding.fp8 import exact
from decoding.gpu.available import kernels_run_on

_OLDEST = (8, 9)  # the first compute capability with FP8 tensor cores

_log = logging.getLogger(__name__)


class Arithmetic(Protocol):
    """The two operations of a linear layer in FP8, as `decoding/fp8/exact.py` defines them."""

    def quantize(self, x_NI: torch.Tensor, group_size: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Return lines rounded to FP8, and the scales of their groups."""

    def multiply(
        self,
        quantized_NI: torch.Tensor,
        scales_NG: torch.Tensor,
        weight_OI: torch.Tensor,
        weight_scales_SG: torch.Tensor,
        outputs_per_scale: int,
        group_size: int,
        bias_O: torch.Tensor | None,
        dtype: torch.dtype,
        /,
    ) -> torch.Tensor:
        """Return `x W^T + b` [N, O] of such lines."""


def arithmetic_on(device: torch.device) -> Arithmetic:
    """Return the fastest arithmetic on a device; raise a ValueError for a GPU without FP8 instructions."""
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _OLDEST:
            raise ValueError(
                "need a GPU of compute capability 8.9 or later (L4, L40S, H100, B200), and "
                f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}; use the unquantized "
                "checkpoint on it"
            )
    if kernels_run_on(device):
        from decoding.gpu import fp8_linear

        return fp8_linear
    _log.warning("FP8 weights are multiplied by torch's float64 operations on this %s: exact, but slow", device.type)
    return exact
