"""Root mean square normalization of lines. Shapes: N lines, E numbers of each."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE: tl.constexpr):
    """Compute x / rms(x) * weight of one line, rounded once."""
    line = tl.program_id(0).to(tl.int64) * size
    index_E = tl.arange(0, PADDED_SIZE)
    inside_E = index_E < size
    x_E = tl.load(x_NE + line + index_E, mask=inside_E, other=0.0).to(tl.float32)
    weight = tl.load(weight_E + index_E, mask=inside_E, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(x_E * x_E, 0) / size + epsilon)
    tl.store(out_NE + line + index_E, (x_E * factor * weight).to(out_NE.dtype.element_ty), mask=inside_E)
