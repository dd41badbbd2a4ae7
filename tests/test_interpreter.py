"""Tests on the product of Triton's interpreter as the tests have it."""

import numpy as np
import pytest

from tests.interpreter import product_in_order


@pytest.mark.parametrize("shape", [(1, 64, 16), (16, 128, 1), (128, 64, 33)], ids=str)
def test_each_sum_of_a_product_adds_in_the_order_of_its_inputs(shape):
    num_rows, num_inputs, num_columns = shape
    random = np.random.default_rng(1)
    a = random.standard_normal((num_rows, num_inputs), dtype=np.float32)
    b = random.standard_normal((num_columns, num_inputs), dtype=np.float32).T
    start = random.standard_normal((num_rows, num_columns), dtype=np.float32)
    product = product_in_order(a, b, start)
    for row, column in [(0, 0), (num_rows - 1, num_columns - 1)]:
        total = np.float32(0)
        for left, right in zip(a[row], b[:, column], strict=True):
            total += left * right
        assert product[row, column] == total + start[row, column]
