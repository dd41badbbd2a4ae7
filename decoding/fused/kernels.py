"""The CPU kernels of a forward: what the C++ functions of `decoding/cpu/kernels` take, and those that are to be had."""

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from decoding.cpu.library import function, library

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_HEAD_SIZES = (16, 32, 64, 80, 96, 128, 256)
_LANES = 16
_TILES = {"on": 1, "emulated": 2, "off": 0}  # what DRAY_KERNELS_TILES may say, and the form of a weight (tiles.h)
_TILE_KINDS = {1: "amx-bf16", 2: "amx-bf16-emulated"}
_NO_TILES = {  # what dray_has_tiles says
    -1: "the tiles of this processor add in another order than its manual says",
    -2: "the system does not let this process use the tiles of its processor (AMX)",
}
_POINTER, _pointer = ctypes.c_void_p, ctypes.POINTER
_log = logging.getLogger(__name__)
LinearFunction = Callable[..., None]  # takes a Linear, lines x, their number, what is added to the result, the result


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Declare fields of one kind, named in the order in which they lie in memory."""
    return [(name, kind) for name in names.split()]


class Forward(ctypes.Structure):
    """The data that all layers of a forward share; the fields are explained in attention.h."""

    _fields_ = [
        *_fields(ctypes.c_int64, "num_rows num_tokens num_kv_heads group head_size num_positions num_visible"),
        *_fields(_POINTER, "row_first slot write_position position turn tables"),
        ("half", ctypes.c_int64),
        *_fields(ctypes.c_float, "scale softcap"),
    ]


class TableAddresses:
    """The rotary tables (cos, sin) of every kind of layer, and their addresses, which serve many forwards."""

    def __init__(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Keep the tables alive, since the kernels have only their addresses."""
        self.pairs = [(cos_PD.contiguous(), sin_PD.contiguous()) for cos_PD, sin_PD in pairs]
        addresses = [each.data_ptr() for pair in self.pairs for each in pair]
        self._addresses = (_POINTER * len(addresses))(*addresses)
        self.address = ctypes.addressof(self._addresses)


class LayerCache(ctypes.Structure):
    """One layer's keys and values, the norms of its heads, and what it sees."""

    _fields_ = [
        *_fields(_POINTER, "keys values query_norm key_norm"),
        *_fields(ctypes.c_float, "epsilon norm_offset"),
        *_fields(ctypes.c_int64, "norms_all_heads window kind"),
    ]


class Norm(ctypes.Structure):
    """The weight of a norm, or none; the fields are explained in rms_norm.h."""

    _fields_ = [("weight", _POINTER), *_fields(ctypes.c_float, "epsilon offset"), ("is_centered", ctypes.c_int64)]


class Linear(ctypes.Structure):
    """A weight in the kernel's layout, with bias and gate; the fields are explained in finish.h."""

    _fields_ = [
        *_fields(_POINTER, "weight bias gate_weight gate_bias"),
        *_fields(ctypes.c_int64, "inputs outputs form gate_form"),
        ("scale", ctypes.c_float),
        ("gate_is_gelu", ctypes.c_int32),
    ]


class DecoderLayer(ctypes.Structure):
    """One whole layer; the fields are explained in decoder.h."""

    _fields_ = [
        *_fields(Norm, "attention_norm mlp_norm after_attention after_mlp"),
        *_fields(Linear, "qkv out up down"),
        ("cache", LayerCache),
        ("is_parallel", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Kernels:
    """The functions of cpu.cpp for one dtype."""

    attention: Callable[..., None]  # rotates and stores qkv [N, (Q + 2 H) * D], writes the output [N, Q * D]
    rms_norm_function: Callable[..., None]
    softcap_function: Callable[..., None]
    layers_function: Callable[..., None] | None  # None without the products of `load_linear`

    def rms_norm(
        self, x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float, offset: float = 0.0, is_centered: bool = False
    ) -> torch.Tensor:
        """Compute `x / rms(x) * (offset + weight)` of each row, whose mean is taken off before if it is centered."""
        out_NE = torch.empty_like(x_NE)
        norm = Norm(weight_E.data_ptr(), epsilon, offset, is_centered)
        self.rms_norm_function(norm, x_NE.data_ptr(), *x_NE.shape, out_NE.data_ptr())
        return out_NE

    def softcap(self, x: torch.Tensor, cap: float) -> None:
        """Replace contiguous numbers by `cap * tanh(x / cap)`, in place."""
        self.softcap_function(x.data_ptr(), x.numel(), cap)


def load(dtype: torch.dtype, head_size: int, hidden_size: int) -> Kernels | None:
    """Return the kernels for a network of these sizes on CPU; None if torch's own operations must do."""
    if dtype not in _DTYPES or head_size not in _HEAD_SIZES or hidden_size % _LANES:
        return None
    kind = _DTYPES[dtype]
    attention = function(f"dray_attention_{kind}", None, _pointer(Forward), _pointer(LayerCache), _POINTER, _POINTER)
    rms_norm = function(f"dray_rms_norm_{kind}", None, _pointer(Norm), _POINTER, *2 * [ctypes.c_int64], _POINTER)
    softcap = function(f"dray_softcap_{kind}", None, _POINTER, ctypes.c_int64, ctypes.c_float)
    if attention is None or rms_norm is None or softcap is None:
        return None
    of_layers = (_pointer(Forward), _pointer(DecoderLayer), ctypes.c_int64, ctypes.c_bool, _POINTER, _POINTER)
    return Kernels(attention, rms_norm, softcap, function(f"dray_layers_{kind}", None, *of_layers))


def load_linear(dtype: torch.dtype) -> LinearFunction | None:
    """Return the matrix product of this dtype; None if the processor or the compiler cannot do it."""
    return function(f"dray_linear_{_DTYPES[dtype]}", None, _pointer(Linear), _POINTER, ctypes.c_int64, *2 * [_POINTER])


def linear_columns() -> int:
    """Return the outputs of a block in the layout of the weights that `load_linear`'s functions read."""
    columns = function("dray_linear_columns", ctypes.c_int64)
    assert columns is not None, "only a function of the library needs its layout"
    return int(columns())


def tile_form(dtype: torch.dtype) -> int:
    """Return the `form` of weights that tiles multiply (tiles.h); 0 if none do in this dtype.

    Raises ValueError if DRAY_KERNELS_TILES is none of its values.
    """
    if dtype != torch.bfloat16:
        return 0
    wish = os.environ.get("DRAY_KERNELS_TILES", "on")
    if wish not in _TILES:
        raise ValueError(f"DRAY_KERNELS_TILES is one of {', '.join(_TILES)}, and not {wish!r}")
    return _agreeing(library(), _TILES[wish])


@cache
def _agreeing(_: ctypes.CDLL | None, form: int) -> int:
    """Return a form if there are such tiles and they add as the vectors do that multiply few lines; else 0."""
    has_tiles = function("dray_has_tiles", ctypes.c_int64, ctypes.c_int64)
    found = 0 if has_tiles is None else has_tiles(form)
    if found in _NO_TILES:
        _log.warning("%s: bfloat16 does without them, so it is rounded otherwise than where they run", _NO_TILES[found])
    return form if found > 0 else 0


def linear_kind(dtype: torch.dtype) -> str:
    """Return the instructions that multiply in this dtype; products of different kinds are rounded differently.

    An empty text if none of our kernels multiplies.
    """
    if form := tile_form(dtype):
        return _TILE_KINDS[form]
    kind = function(f"dray_linear_kind_{_DTYPES.get(dtype)}", ctypes.c_char_p)
    return "" if kind is None else str(kind().decode())
