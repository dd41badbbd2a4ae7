"""The order in which the tile unit of a processor with AMX adds, in numpy, after Intel's manual and not after our code.

Software Developer's Manual, volume 2, TDPBF16PS: for each 32 inputs two temporaries, of the even and of the odd ones,
to which products are added (fused, rounded once to nearest even), then their sum, then that of the result and this sum.
Denormal inputs count as zero, and denormal results become zero.

Shapes: N lines, I inputs, O outputs.
"""

import numpy as np

_LEAST = 2.0**-126  # of the normal numbers of float32


def products(x_NI: np.ndarray, weight_OI: np.ndarray) -> np.ndarray:
    """Return x W^T [N, O] in float32; the numbers given are those of bfloat16, in float32."""
    x_NI, weight_OI = _flushed(x_NI), _flushed(weight_OI)
    sums_NO = np.zeros((len(x_NI), len(weight_OI)), np.float32)
    for first in range(0, x_NI.shape[1], 32):
        temporaries = [np.zeros_like(sums_NO), np.zeros_like(sums_NO)]
        for index in range(first, min(first + 32, x_NI.shape[1])):
            temporaries[index % 2] = _fused(x_NI[:, index, None], weight_OI[:, index], temporaries[index % 2])
        one = np.float32(1)
        sums_NO = _fused(one, sums_NO, _fused(one, *temporaries))
    return sums_NO


def _fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a b + c, rounded once.

    In float64, where a b is exact: the sum is rounded to odd, so that rounding it again rounds as the exact sum would
    be (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    exact, added = a.astype(np.float64) * b, c.astype(np.float64)
    found = exact + added
    part = found - exact
    lost = (exact - (found - part)) + (added - part)
    is_even = found.view(np.int64) % 2 == 0
    found = np.where((lost != 0) & is_even, np.nextafter(found, np.copysign(np.inf, lost)), found)
    with np.errstate(over="ignore"):
        # The exponent counts after rounding to 24 bits, and a denormal number has fewer: it is rounded far above them.
        lifted = (found * 2.0**64).astype(np.float32).astype(np.float64) / 2.0**64
        is_tiny = (np.abs(found) < 2 * _LEAST) & (np.abs(lifted) < _LEAST)
        return np.where(is_tiny, np.copysign(0.0, found), found).astype(np.float32)


def _flushed(numbers: np.ndarray) -> np.ndarray:
    return np.where(np.abs(numbers) < _LEAST, np.copysign(np.float32(0), numbers), numbers)
