"""What is read of a GGUF tensor stands for the numbers that the package gguf makes of it, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.codes.weight import CodedWeight
from tests.decoding.codes.random_codes import TYPES, random_tensor, same_bits


@pytest.mark.parametrize("name", TYPES)
def test_the_codes_of_each_type_stand_for_the_numbers_of_gguf(tmp_path, name):
    tensor, numbers = random_tensor(tmp_path, name, 7, 768)
    assert same_bits(torch.from_numpy(tensor.read().dequantized()), numbers)


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0"])
def test_interleaved_heads_are_put_in_the_order_of_the_network(tmp_path, name):
    tensor, numbers = random_tensor(tmp_path, name, 48, 64)
    found = torch.from_numpy(replace(tensor, num_halved=3).read().dequantized())
    assert same_bits(found, numbers.view(3, 8, 2, 64).transpose(1, 2).reshape(48, 64).contiguous())


def test_weights_of_all_types_side_by_side_are_still_the_same_numbers(tmp_path):
    tensors = [random_tensor(tmp_path, name, 5, 512) for name in TYPES]
    joined = CodedWeight.side_by_side([tensor.read() for tensor, _ in tensors])
    assert same_bits(torch.from_numpy(joined.dequantized()), torch.cat([numbers for _, numbers in tensors]))
    assert (joined.num_bits, joined.scales_OG.dtype, joined.group_size) == (8, np.float32, 16)
    alike = CodedWeight.side_by_side([tensors[1][0].read()] * 2)
    assert (alike.num_bits, alike.scales_OG.dtype, alike.group_size) == (4, np.float16, 32)
