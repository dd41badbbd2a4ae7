"""A packed weight that is read is scale times (code - zero point), rounded once; what readers differ in is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from decoding.checkpoint.model_files import tensors_in
from decoding.checkpoint.quantized.packed_format import packed_layout
from decoding.codes.packed_tensors import PackedTensor
from tests.decoding.codes.packed_folders import BF16, KINDS, NOT_IN_CODES, Kind, Numbers, parts_of, quantized
from tests.decoding.codes.random_codes import same_bits


def stored(folder: Path, tensors: dict[str, torch.Tensor], kind: Kind) -> PackedTensor:
    """The weight of module "a.b" as it is read from these tensors in a file."""
    file = folder / "model.safetensors"
    save_file({f"a.b.{part}": tensor for part, tensor in tensors.items()}, file)
    layout = packed_layout({"quantization_config": kind.config})
    assert layout is not None
    found = layout.tensors({name: (*said, file) for name, said in tensors_in(file).items()})
    assert list(found) == ["a.b.weight"]
    return found["a.b.weight"]


def numbers_of(kind: Kind, outputs: int = 24, inputs: int = 256) -> Numbers:
    generator = torch.Generator().manual_seed(1)
    return quantized(0.1 * torch.randn(outputs, inputs, generator=generator), kind)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_stands_for_scales_times_differences_rounded_once(tmp_path, name):
    kind = KINDS[name]
    numbers = numbers_of(kind)
    tensor = stored(tmp_path, parts_of(numbers, kind), kind)
    assert torch.equal(tensor.dequantized(), numbers.weight_OI)
    if name in NOT_IN_CODES:
        with pytest.raises(ValueError, match=r"a\.b\..* with which it is not multiplied"):
            tensor.read()
        assert (tensor.stays_float32, tensor.num_bytes_saved) == (True, 0)
        return
    coded = tensor.read()
    assert same_bits(torch.from_numpy(coded.dequantized()), tensor.dequantized())
    assert coded.num_bits == (8 if "float32" in name else kind.num_bits)
    saved = 4 * coded.codes_OI.size - coded.codes_OI.size * coded.num_bits // 8
    saved -= sum(each.nbytes for each in (coded.scales_OG, coded.minimums_OG) if each is not None)
    assert (tensor.stays_float32, tensor.num_bytes_saved) == (False, saved)


@pytest.mark.parametrize("group_size", [8, 24, 64, 192, 384])
def test_the_bytes_of_each_size_of_groups_are_known_before_a_weight_is_read(tmp_path, group_size):
    kind = Kind("awq", has_zeros=True, group_size=group_size)
    numbers = numbers_of(kind, inputs=384)
    tensor = stored(tmp_path, parts_of(numbers, kind), kind)
    coded = tensor.read()
    assert same_bits(torch.from_numpy(coded.dequantized()), numbers.weight_OI)
    assert coded.minimums_OG is not None
    kept = coded.codes_OI.size // 2 + coded.scales_OG.nbytes + coded.minimums_OG.nbytes
    assert tensor.num_bytes_saved == 4 * coded.codes_OI.size - kept


@pytest.mark.parametrize("kind", [Kind("pack-quantized", has_zeros=True, dtype=BF16), Kind("pack-quantized")])
def test_lines_that_are_no_whole_words_and_scales_below_zero_are_read(tmp_path, kind):
    numbers = numbers_of(kind, outputs=13)
    numbers.scales_OG[::2] *= -1
    tensor = stored(tmp_path, parts_of(numbers, kind), kind)
    assert torch.equal(tensor.dequantized(), numbers.weight_OI)
    assert same_bits(torch.from_numpy(tensor.read().dequantized()), tensor.dequantized())


def test_scales_that_float16_cannot_say_are_kept_in_float32(tmp_path):
    kind = KINDS["W4A16"]
    numbers = numbers_of(kind)
    numbers.scales_OG[3, 1] = 1e-7
    tensor = stored(tmp_path, parts_of(numbers, kind), kind)
    assert torch.equal(tensor.dequantized(), numbers.weight_OI)
    assert (tensor.read().num_bits, tensor.read().scales_OG.dtype.name) == (4, "float32")


PLANTED = {
    "a scale of the next group": lambda it: replace(it, scales_OG=it.scales_OG.roll(1, 1)),
    "a zero point off by one": lambda it: replace(it, zeros_OG=it.zeros_OG + (torch.arange(24) == 5)[:, None]),
    "codes of another weight": lambda it: replace(it, codes_OI=it.codes_OI.flip(0)),
    "two codes of a word in the other order": lambda it: replace(it, codes_OI=it.codes_OI[:, [1, 0, *range(2, 256)]]),
}


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("name", ["GPTQ v2", "AWQ", "W4A16 with zero points"])
def test_one_planted_mistake_makes_another_weight(tmp_path, name, what):
    kind = KINDS[name]
    numbers = numbers_of(kind)
    tensor = stored(tmp_path, parts_of(PLANTED[what](numbers), kind), kind)
    assert not torch.equal(tensor.dequantized(), numbers.weight_OI)


def odd_zeros(parts: dict[str, torch.Tensor]) -> None:
    parts["qzeros"] = torch.full_like(parts["qzeros"], 0x66666666)


def order(parts: dict[str, torch.Tensor]) -> None:
    parts["g_idx"] = parts["g_idx"].flip(0).contiguous()


def no_such_group(parts: dict[str, torch.Tensor]) -> None:
    parts["g_idx"] = parts["g_idx"] + 1


def shape(parts: dict[str, torch.Tensor]) -> None:
    parts["weight_shape"] = torch.tensor([24, 252])


def minus_one(parts: dict[str, torch.Tensor]) -> None:
    parts["qzeros"][0, 0] = -1


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("GPTQ", odd_zeros, "is symmetric by config.json, and its zero points are not 8"),
        ("GPTQ with zero points", minus_one, "has zero points of 0 stored minus one, which readers take differently"),
        ("GPTQ", order, "has an order of inputs that config.json does not say"),
        ("GPTQ in act order", no_such_group, "has an order of inputs that config.json does not say"),
        ("W4A16", shape, r"is of \(24, 256\) weights, and its weight_shape says another number"),
    ],
)
def test_what_readers_differ_in_is_refused_when_it_is_read(tmp_path, name, change, said):
    kind = KINDS[name]
    parts = parts_of(numbers_of(kind), kind)
    change(parts)
    with pytest.raises(ValueError, match=rf"^a\.b\.\w+ {said}"):
        stored(tmp_path, parts, kind).dequantized()


@pytest.mark.parametrize(
    ("name", "part", "tensor", "said"),
    [
        ("GPTQ", "scales", None, r"has nothing of shape \[\] as 'a.b.scales'; expected F16 or BF16 or F32"),
        ("AWQ", "qzeros", torch.zeros(8, 2).int(), r"has I32 of shape \[8, 2\] as .*; expected I32 of shape \[8, 3"),
        ("W4A16 with zero points", "weight_zero_point", torch.zeros(24, 4).to(torch.int8), "has I8 of shape"),
        ("W4A16", "weight_packed", torch.zeros(24, 15).int(), "of 120 inputs, which are no whole groups of 32"),
        ("GPTQ in act order", "g_idx", None, "as 'a.b.g_idx'; expected I32 or I64"),
        ("W4A16", "weight_packed", torch.zeros(384).int(), "expected two dimensions"),
    ],
)  # fmt: skip
def test_parts_that_are_missing_or_odd_are_refused_by_the_heads_of_files(tmp_path, name, part, tensor, said):
    kind = KINDS[name]
    parts = parts_of(numbers_of(kind), kind)
    parts |= {part: tensor}
    with pytest.raises(ValueError, match=said):
        stored(tmp_path, {name: each for name, each in parts.items() if each is not None}, kind)
