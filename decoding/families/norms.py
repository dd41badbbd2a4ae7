"""Norms of lines by torch's own operations.

Shapes: N lines, E their size.
"""

import torch
from torch.nn.functional import rms_norm


def torch_norm(
    x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float, offset: float = 0.0, is_centered: bool = False
) -> torch.Tensor:
    """Compute `x / rms(x) * (offset + weight)` by torch's own operations; the mean is taken off if it is centered."""
    if not offset and not is_centered:
        return rms_norm(x_NE, weight_E.shape, weight_E, epsilon)
    wide_NE = x_NE.float()
    if is_centered:
        wide_NE = wide_NE - wide_NE.mean(-1, keepdim=True)
    return rms_norm(wide_NE, weight_E.shape, weight_E.float() + offset, epsilon).to(x_NE.dtype)
