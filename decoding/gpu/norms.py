"""Root mean square normalization by our Triton kernel. Shapes: N lines, E numbers of each."""

import torch

from decoding.gpu.kernels import norms as kernels

_NUMBERS_OF_A_WARP = 512


def rms_norm(x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Compute `x / rms(x) * weight` of each line, rounded once; a line's numbers do not depend on the others."""
    x_NE = x_NE.contiguous()
    out_NE = torch.empty_like(x_NE)
    num_lines, size = x_NE.shape
    if num_lines:
        padded_size = 1 << (size - 1).bit_length()
        num_warps = max(1, min(16, padded_size // _NUMBERS_OF_A_WARP))
        kernels.rms_norm[(num_lines,)](
            x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE=padded_size, num_warps=num_warps, enable_fp_fusion=False
        )
    return out_NE
