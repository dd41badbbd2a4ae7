"""A layer over codes computes what the layer over their float32 numbers does, bit for bit, beside any other lines."""

import logging
from pathlib import Path

import pytest
import torch

from decoding.codes.gguf_tensors import CodedTensor
from decoding.fused import kernels
from decoding.fused.coded_linear import CodedLinear, coded_layer
from decoding.fused.linear import KernelLinear, PackedEmbedding
from tests.decoding.codes.random_codes import TYPES, random_tensor, same_bits

# Outputs and inputs: of SmolLM2, and with a last block of any size (blocks have 16 or 32 outputs).
SHAPES = {"wide": (1536, 576), "deep": (576, 1536), "few": (7, 512), "one more": (33, 256), "one less": (95, 288)}
K_SHAPES = {"deep": (160, 1536), "few": (7, 512), "one more": (33, 256)}
FORMS = ("Q4_0", "Q4_1", "Q4_K", "Q8_0", "Q6_K")  # each of the formats of the kernel


@pytest.fixture(autouse=True)
def function() -> kernels.LinearFunction:
    found = kernels.load_linear(torch.float32)
    if found is None:
        pytest.skip("no compiler here, or no AVX2")
    return found


def layers_of(
    folder: Path, name: str, shape: tuple[int, int], *, bias: bool = False, seed: int = 0
) -> tuple[CodedLinear, KernelLinear]:
    """Return the same layer with codes and with float32 numbers."""
    function = kernels.load_linear(torch.float32)
    assert function is not None
    tensor, numbers = random_tensor(folder, name, *shape, seed)
    bias_O = torch.randn(shape[0]) if bias else None
    return CodedLinear(tensor.read(), bias_O, function), KernelLinear(numbers, bias_O, function)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_codes_of_each_type_are_multiplied_as_their_float32_numbers_are(tmp_path, name, bias):
    torch.manual_seed(0)
    for shape in (K_SHAPES if name.endswith("K") else SHAPES).values():
        coded, plain = layers_of(tmp_path, name, shape, bias=bias)
        gate, plain_gate = layers_of(tmp_path, name, shape, bias=bias, seed=1)
        assert same_bits(coded.weight, plain.weight)
        for num_lines in (1, 3, 8, 11, 16, 17, 33):
            x, y = torch.randn(num_lines, shape[1]), torch.randn(num_lines, shape[0])
            assert same_bits(coded(x), plain(x)), (shape, num_lines)
            assert same_bits(coded.plus(x, y), plain.plus(x, y)), (shape, num_lines)
            assert same_bits(coded.gated(x, gate), plain.gated(x, plain_gate)), (shape, num_lines)
            assert same_bits(coded.gated(x, plain_gate), plain.gated(x, gate)), (shape, num_lines)


@pytest.mark.parametrize("name", FORMS)
def test_a_line_gets_the_same_result_alone_and_beside_up_to_forty_others(tmp_path, name):
    torch.manual_seed(1)
    layer, _ = layers_of(tmp_path, name, (100, 768), bias=True)
    gate, _ = layers_of(tmp_path, name, (100, 768), seed=1)
    x, y = torch.randn(200, 768), torch.randn(200, 100)
    alone = torch.cat([layer.plus(x[n : n + 1], y[n : n + 1]) for n in range(200)])
    gated_alone = torch.cat([layer.gated(x[n : n + 1], gate) for n in range(200)])
    for num_lines in (*range(1, 42), 193, 200):
        assert same_bits(layer.plus(x[:num_lines], y[:num_lines]), alone[:num_lines]), num_lines
        assert same_bits(layer.gated(x[:num_lines], gate), gated_alone[:num_lines]), num_lines


def test_threads_do_not_share_the_block_that_they_decode(tmp_path):
    layer, plain = layers_of(tmp_path, "Q4_1", (2048, 1024))
    x, num_threads = torch.randn(192, 1024), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert all(same_bits(layer(x), plain(x)) for _ in range(10))
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("name", FORMS)
def test_each_input_meets_its_own_code_scale_and_minimum(tmp_path, name):
    """A line of zeros and one 1 finds one column of the weight."""
    layer, plain = layers_of(tmp_path, name, (40, 512))
    for num_lines in (4, 64):
        for first in range(0, 512, num_lines):
            columns = layer(torch.eye(512)[first : first + num_lines])
            assert torch.equal(columns, plain.weight.t()[first : first + num_lines])


def test_an_embedding_returns_the_lines_that_are_asked_for(tmp_path):
    tensor, numbers = random_tensor(tmp_path, "Q8_0", 301, 96)
    embedding = torch.nn.Embedding(301, 96, _weight=numbers)
    embedding.codes = tensor
    layer = coded_layer([embedding])
    assert layer is not None
    ids = torch.randint(301, (3, 50), generator=torch.Generator().manual_seed(0))
    assert same_bits(PackedEmbedding(layer)(ids), numbers[ids])
    assert same_bits(PackedEmbedding(layer)(torch.tensor(300)), numbers[300])
    assert same_bits(PackedEmbedding(layer).weight, numbers)
    with pytest.raises(AssertionError, match="no such line"):
        PackedEmbedding(layer)(torch.tensor([301]))


def linear_over(numbers: torch.Tensor, tensor: CodedTensor) -> torch.nn.Linear:
    linear = torch.nn.Linear(numbers.shape[1], numbers.shape[0], bias=False).requires_grad_(False)
    linear.weight.copy_(numbers)
    linear.codes = tensor
    return linear


def test_codes_of_other_numbers_than_the_weights_are_not_taken_and_said(tmp_path, caplog):
    (tensor, numbers), (other, _) = (random_tensor(tmp_path, "Q4_1", 64, 64, seed) for seed in (0, 1))
    assert coded_layer([linear_over(numbers, tensor)]) is not None
    with caplog.at_level(logging.WARNING):
        assert coded_layer([linear_over(numbers, other)]) is None
        assert "stays float32" in caplog.text
        Path(tensor.file).unlink()
        assert coded_layer([linear_over(numbers, tensor)]) is None
    assert "cannot be read" in caplog.text


def test_layers_are_joined_only_if_all_of_them_have_codes(tmp_path):
    parts = [linear_over(numbers, tensor) for tensor, numbers in (random_tensor(tmp_path, it, 48, 256) for it in FORMS)]
    joined = coded_layer(parts)
    assert joined is not None
    assert same_bits(joined.weight, torch.cat([part.weight for part in parts]))
    x = torch.randn(5, 256)
    function = kernels.load_linear(torch.float32)
    assert same_bits(joined(x), torch.cat([KernelLinear(part.weight, None, function)(x) for part in parts], dim=1))
    del parts[2].codes
    assert coded_layer(parts) is None


def test_a_layer_that_gets_other_numbers_computes_with_them_in_float32(tmp_path):
    layer, _ = layers_of(tmp_path, "Q4_1", (50, 64), bias=True)
    _, other = layers_of(tmp_path, "Q8_0", (50, 64), bias=True, seed=1)
    x = torch.randn(9, 64)
    layer.replace(other.weight, other.bias)
    assert same_bits(layer(x), other(x))
    assert same_bits(layer.weight, other.weight)
    assert same_bits(layer.lines(torch.tensor([3, 49])), other.weight[[3, 49]])


def test_without_kernels_no_codes_are_multiplied(tmp_path, monkeypatch):
    tensor, numbers = random_tensor(tmp_path, "Q4_1", 64, 64)
    assert coded_layer([linear_over(numbers, tensor)]) is not None
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert coded_layer([linear_over(numbers, tensor)]) is None
