"""The tensors of a head: their names and shapes by its configuration, and how they are read and checked.

Names are those of speculators 0.9.0 (speculators/models/*/core.py), where SafeAILab/EAGLE says `midlayer` for
`layers.0` and NVIDIA's Automodel puts `model.` in front; the modules of a head's network have them, too.

A head may know some of its target's tokens only. `d2t` then holds offsets: token i of the head is token i + d2t[i] of
the target. `t2d` marks the tokens of the target that the head knows, so it follows from `d2t`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.model_files import read_json, tensors_in, weight_files
from decoding.fp8.exact import dequantize
from decoding.fp8.linear import Scaling
from decoding.heads.format.head_config import HeadConfig

FIRST_LAYER, EAGLES_FIRST_LAYER = "layers.0.", "midlayer."
OF_VOCABULARY = ("d2t", "t2d")  # tensors that are no weights
_MASK = "mask_hidden"  # of one, two or three dimensions, by who wrote it
_FLOATS = ("F32", "BF16", "F16")
_PLAIN = (*_FLOATS, "I64", "I32", "BOOL")
_KINDS = {"float": _FLOATS, "ids": ("I64", "I32"), "marks": ("BOOL",)}


@dataclass(frozen=True)
class Expected:
    """A tensor that a head has, or may have; `kind` is "float", "ids" or "marks"."""

    shape: tuple[int, ...]
    is_optional: bool = False
    kind: str = "float"


def expected_tensors(config: HeadConfig) -> dict[str, Expected]:
    """Return the tensors of a head of this configuration, by name.

    The embedding may be absent, and so may the output layer of a head that knows all tokens: they are the target's.
    Of a reduced vocabulary `t2d` may be absent, since it follows from `d2t`.
    """
    from decoding.heads.format.networks import network_of  # of transformers' modules: only for a head to look at

    vocab_size, draft_vocab_size = config.vocab_size, config.draft_vocab_size
    is_whole = draft_vocab_size == vocab_size
    found = {name: Expected(tuple(each.shape)) for name, each in network_of(config).named_parameters()}
    for name, may_lack in (("embed_tokens.weight", True), ("lm_head.weight", is_whole)):
        found[name] = replace(found[name], is_optional=may_lack)
    found["d2t"] = Expected((draft_vocab_size,), is_optional=is_whole, kind="ids")
    found["t2d"] = Expected((vocab_size,), is_optional=True, kind="marks")
    return found


def read_tensors(folder: Path, config: HeadConfig) -> dict[str, torch.Tensor]:
    """Return the tensors of the head in a folder, by name, as they are stored; FP8 weights in bfloat16.

    What its config.json says of quantization counts only if some weight is quantized. Raises ValueError for files that
    are missing or not whole, and, with a message that begins with a verb, for weights that are quantized otherwise and
    as `check_tensors` does; names, shapes and dtypes are checked before anything is read.
    """
    headers: dict[str, tuple[str, tuple[int, ...]]] = {}
    files = weight_files(folder)
    for file in files:
        for stored, header in tensors_in(file).items():
            name = our_name(stored)
            if name in headers:
                raise ValueError(f"has two tensors for {name!r}; copy or download it again")
            headers[name] = header if name != _MASK else (header[0], (1, 1, *header[1][-1:]))
    quantized = [name for name, (dtype, _) in headers.items() if dtype not in _PLAIN]
    is_plain = not quantized and headers.keys() <= expected_tensors(config).keys()
    form = None if is_plain else fp8_format(read_json(folder / "config.json"))
    scales = {} if form is None else _scales_of(quantized, headers, form.scaling)
    _check_headers({name: header for name, header in headers.items() if name not in scales.values()}, config)
    tensors = {our_name(name): tensor for file in files for name, tensor in load_file(file).items()}
    if _MASK in tensors:
        tensors[_MASK] = tensors[_MASK].reshape(1, 1, -1)
    for weight, scale in scales.items():
        assert form is not None
        group_size = form.scaling.group_size(tensors[weight].shape[1])
        fed = tensors[weight], tensors.pop(scale), form.scaling.outputs, group_size
        tensors[weight] = dequantize(*fed).to(torch.bfloat16)
    _check_values(tensors, config)
    return tensors


def _scales_of(
    quantized: list[str], headers: dict[str, tuple[str, tuple[int, ...]]], scaling: Scaling
) -> dict[str, str]:
    """Return the names of FP8 weights' scales, by weight, and let the weights pass for bfloat16 in `headers`."""
    scales = {}
    for name in quantized:
        (dtype, shape), scale = headers[name], f"{name.removesuffix('weight')}{scaling.name}"
        found, wanted = headers.get(scale), scaling.shape(*shape) if len(shape) == 2 else None
        if dtype != "F8_E4M3" or found is None or found[0] not in _FLOATS or found[1] != wanted:
            raise ValueError(
                f"has {name!r} in {dtype} of shape {list(shape)} with {scale!r} {found}, expected F8_E4M3 with scales "
                f"of shape {wanted}; use a version of the head in bfloat16"
            )
        headers[name], scales[name] = ("BF16", shape), scale
    return scales


def our_name(stored: str) -> str:
    """Return the name of a tensor here, for its name in a file."""
    stored = stored.removeprefix("model.")
    stored = stored.removesuffix(".weight") if stored.endswith("_codebook.weight") else stored  # z-lab's own modules
    return FIRST_LAYER + stored.removeprefix(EAGLES_FIRST_LAYER) if stored.startswith(EAGLES_FIRST_LAYER) else stored


def check_tensors(tensors: dict[str, torch.Tensor], config: HeadConfig) -> None:
    """Raise a ValueError, with a message that begins with a verb, if these are not the tensors of such a head.

    Refused are unknown and missing names, other shapes and dtypes, values that are not finite (training software leaves
    NaN in what was never set), and a vocabulary that is not one.
    """
    words = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.bool: "BOOL"}
    words |= {torch.int64: "I64", torch.int32: "I32"}
    headers = {name: (words.get(each.dtype, str(each.dtype)), tuple(each.shape)) for name, each in tensors.items()}
    _check_headers(headers, config)
    _check_values(tensors, config)


def _check_headers(headers: dict[str, tuple[str, tuple[int, ...]]], config: HeadConfig) -> None:
    expected = expected_tensors(config)
    if unknown := sorted(headers.keys() - expected.keys()):
        raise ValueError(
            f"has a tensor {unknown[0]!r}{_more(unknown)}, and by its config.json it is of kind {config.kind}, which "
            "has none; its config.json belongs to other weights, or its kind is not known here"
        )
    if missing := [name for name, each in expected.items() if name not in headers and not each.is_optional]:
        raise ValueError(
            f"lacks the tensor {missing[0]!r}{_more(missing)} of the kind {config.kind}; copy or download it again"
        )
    for name, (dtype, shape) in headers.items():
        if shape != expected[name].shape:
            raise ValueError(
                f"has {name!r} of shape {list(shape)}, expected {list(expected[name].shape)} by its config.json "
                f"({config.num_features} layers read, {config.draft_vocab_size} of {config.vocab_size} tokens); its "
                "config.json belongs to other weights"
            )
        if dtype not in _KINDS[expected[name].kind]:
            allowed = " or ".join(_KINDS[expected[name].kind])
            raise ValueError(f"has {name!r} in {dtype}, expected {allowed}; use another version of the head")


def _check_values(tensors: dict[str, torch.Tensor], config: HeadConfig) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"has values in {name!r} that are not finite, as weights are that were never set; use a head that was "
                "saved after its training"
            )
    if (d2t_D := tensors.get("d2t")) is not None:
        ids_D = target_ids(d2t_D, config.vocab_size)
        if (t2d_V := tensors.get("t2d")) is not None:
            check_membership(t2d_V, ids_D)


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def target_ids(d2t_D: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the target's id of each token of the head, int64 [D].

    Raises ValueError, with a message that begins with a verb, if an id is not one of the target's or comes twice.
    """
    ids_D = d2t_D.to(torch.int64) + torch.arange(len(d2t_D))
    foreign = ((ids_D < 0) | (ids_D >= vocab_size)).nonzero()
    if len(foreign):
        first = int(foreign[0, 0])
        raise ValueError(
            f"maps token {first} of its vocabulary to token {int(ids_D[first])} of a target with {vocab_size}, by d2t; "
            "copy or download it again, or its d2t holds ids where offsets are expected"
        )
    counts_V = torch.bincount(ids_D, minlength=vocab_size)
    if (counts_V > 1).any():
        raise ValueError(
            f"maps {int(counts_V.max())} tokens of its vocabulary to token {int(counts_V.argmax())} of its target, by "
            "d2t; copy or download it again, or its d2t holds ids where offsets are expected"
        )
    return ids_D


def offsets(target_ids_D: torch.Tensor) -> torch.Tensor:
    """Return `d2t` [D] for the target's ids of a head's tokens: what `target_ids` reads."""
    return target_ids_D.to(torch.int64) - torch.arange(len(target_ids_D))


def membership(target_ids_D: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return `t2d`, bool [V]: whether a head knows each token of the target."""
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, target_ids_D, True)


def check_membership(t2d_V: torch.Tensor, target_ids_D: torch.Tensor) -> None:
    """Raise a ValueError, with a message that begins with a verb, if `t2d` and the ids of `d2t` differ."""
    different = (t2d_V != membership(target_ids_D, len(t2d_V))).nonzero()
    if len(different):
        first = int(different[0, 0])
        says = "has" if t2d_V[first] else "lacks"
        raise ValueError(
            f"contradicts itself: {says} token {first} of its target by t2d and not by d2t ({len(different)} such "
            "tokens); copy or download it again"
        )
