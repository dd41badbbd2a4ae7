"""Triton's interpreter as the tests need it: faster, and with products whose sums have one order.

It looked through Triton's language at each call, which took half of its time; now it does so once for each file of
kernels. Its product was numpy's, whose library may add in another order for another shape, as OpenBLAS's kernels for
older processors do; a GPU's tensor cores add in one order, whatever the other rows and columns are.
"""

from typing import Any

import numpy as np

from decoding.gpu.available import is_interpreted


def install() -> None:
    """Change Triton's interpreter, where it runs."""
    if not is_interpreted():
        return
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle, _patch_lang

    prepared: set[str] = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn.__module__ not in prepared:
            prepared.add(function.fn.__module__)
            _patch_lang(function.fn)
        return function.rewrite()(*args, **kwargs)

    def create_dot(_: Any, a: Any, b: Any, start: Any, *precision: Any) -> Any:
        assert {a.data.dtype, b.data.dtype, start.data.dtype} == {np.dtype(np.float32)}, "kernels widen their operands"
        return TensorHandle(product_in_order(a.data, b.data, start.data), start.dtype.scalar)

    InterpretedFunction.__call__ = call
    InterpreterBuilder.create_dot = create_dot


def product_in_order(a_MK: np.ndarray, b_KN: np.ndarray, start_MN: np.ndarray) -> np.ndarray:
    """Return start + a @ b: the products of each sum are added one after the other, in the order of K."""
    total_MN, product_MN = np.zeros_like(start_MN), np.empty_like(start_MN)
    for a_M1, b_N in zip(a_MK.T[..., None], b_KN, strict=True):
        np.multiply(a_M1, b_N, out=product_MN)
        np.add(total_MN, product_MN, out=total_MN)
    return total_MN + start_MN
