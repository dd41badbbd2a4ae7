"""What is read of a GGUF tensor stands for the numbers that the package gguf makes of it, bit for bit."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from decoding.codes.gguf_tensors import keep_codes, kept_codes
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


def test_codes_are_kept_of_a_file_with_head_counts_of_layers_and_without_heads_named_by_a_relative_link(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    writer = gguf.GGUFWriter(tmp_path / "own.gguf", "lfm2")
    writer.add_block_count(2)
    writer.add_head_count(0)
    writer.add_head_count_kv([0, 2])
    stored = gguf.quantize(
        np.random.default_rng(0).standard_normal((32, 64), np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("blk.0.ffn_down.weight", stored, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = tmp_path / "link.gguf"
    file.symlink_to("own.gguf")
    numbers = torch.from_numpy(gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0))
    name = "model.layers.0.feed_forward.w2.weight"
    keep_codes(folder, file, gguf.GGUFReader(file), {name: numbers})
    assert same_bits(torch.from_numpy(kept_codes(str(folder))[name].read().dequantized()), numbers)
