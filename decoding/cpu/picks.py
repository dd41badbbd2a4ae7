"""Picks on the CPU: a kernel finds the few tokens of each position that could win, and torch computes their noise.

The picks are those of `decoding.sampling.picks.pick_plain`, bit for bit: the kernel leaves out only tokens that are
clearly not among the two best, and the numbers that decide are made by the operations of `decoding.noise`.

Shapes: B rows, J positions, V vocabulary, R rows with masks, W words of 32 token ids, Q candidates.
"""

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from decoding.cpu.library import library
from decoding.noise import BLOCK, Stream
from decoding.picked import Picks

_NAMES = {torch.float32: "dray_begin_picks_float32", torch.bfloat16: "dray_begin_picks_bfloat16"}
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64


class _Inputs(ctypes.Structure):
    """What the kernel reads; the fields are explained in picks.h."""

    _fields_ = [
        ("logits", _POINTER),
        *((name, _INTEGER) for name in ("row_stride", "position_stride", "num_rows", "num_positions", "vocab_size")),
        *((name, _POINTER) for name in ("temperature", "samples", "keys", "lengths")),
        *((name, _INTEGER) for name in ("first", "stream", "num_streams")),
        *(("masks", _POINTER), ("mask_rows", ctypes.POINTER(_INTEGER)), ("num_words", _INTEGER)),
    ]


class _Outputs(ctypes.Structure):
    """What the kernel writes; the fields are explained in picks.h."""

    _fields_ = [
        *((name, _POINTER) for name in ("token_ids", "best", "second", "score", "is_finite", "num_candidates")),
        *((name, _POINTER) for name in ("candidate_ids", "candidate_scores", "minus_u", "minus_u_of_block")),
    ]


@dataclass(frozen=True)
class PickInputs:
    """What decides beside the logits: tensors on the CPU."""

    temperature_B: torch.Tensor  # float32; 1 where greedy
    samples_B: torch.Tensor  # bool: whether a row has noise
    keys_B: torch.Tensor  # of the noise, int64
    lengths_B: torch.Tensor  # int64: position j is token number `lengths + first + j`
    # int32: bit i of word w stands for token id 32 * w + i; None: all are allowed.
    masks_RJW: torch.Tensor | None = None
    mask_rows: Seq[int] = ()  # the rows that have these masks, in their order


def pick(logits_BJV: torch.Tensor, inputs: PickInputs, first: int) -> Picks | None:
    """Pick at the J positions from `first` on, among the tokens that the masks allow, under the shared noise.

    None where torch's own operations must do: without the kernels, for a type of numbers that they do not know, and
    where more than a few tokens of a position lie too close together, or its scores overflow.
    """
    (num_rows, num_positions, vocab_size), masks_RJW = logits_BJV.shape, inputs.masks_RJW
    built = library() if logits_BJV.dtype in _NAMES else None
    num_words = 0 if masks_RJW is None else masks_RJW.shape[2]
    if built is None or logits_BJV.stride(2) != 1 or (masks_RJW is not None and num_words * 32 < vocab_size):
        return None
    functions = _functions(built, _NAMES[logits_BJV.dtype])
    assert len(inputs.temperature_B) == len(inputs.lengths_B) == len(inputs.keys_B) == num_rows, "all are of these rows"
    masks, mask_rows = None, None
    if masks_RJW is not None:
        assert masks_RJW.shape[1] == num_positions, "each position has a mask"
        masks_RJW = masks_RJW.contiguous()
        masks = masks_RJW.data_ptr()
        if len(masks_RJW) < num_rows:
            number_of = {row: number for number, row in enumerate(inputs.mask_rows)}
            mask_rows = (_INTEGER * num_rows)(*(number_of.get(row, -1) for row in range(num_rows)))

    num_places = num_rows * num_positions
    num_listed = num_places * functions.num_candidates
    integers = torch.empty(2 * num_places + num_listed, dtype=torch.int64)
    values = torch.empty(3 * num_places + 3 * num_listed, dtype=torch.float32)
    is_finite_BJ = torch.empty(num_rows, num_positions, dtype=torch.bool)
    at_integer = [integers.data_ptr() + 8 * place for place in (0, num_places, 2 * num_places)]
    places = [*(number * num_places for number in range(4)), *(3 * num_places + n * num_listed for n in (1, 2))]
    at_value = [values.data_ptr() + 4 * place for place in places]
    read = _Inputs(
        *(logits_BJV.data_ptr(), logits_BJV.stride(0), logits_BJV.stride(1), num_rows, num_positions, vocab_size),
        *(inputs.temperature_B.data_ptr(), inputs.samples_B.data_ptr(), inputs.keys_B.data_ptr()),
        *(inputs.lengths_B.data_ptr(), first, int(Stream.SHARED), len(Stream), masks, mask_rows, num_words),
    )
    written = _Outputs(at_integer[0], *at_value[:3], is_finite_BJ.data_ptr(), *at_integer[1:], *at_value[3:])
    num_open = functions.begin(read, written)
    if num_open < 0:
        return None
    if num_open:
        listed_3Q = values[3 * num_places :].view(3, num_listed)
        noised_Q = _noise(listed_3Q[1:]).add_(listed_3Q[0])
        functions.finish(written, num_places, noised_Q.data_ptr())
    best_BJ, second_BJ, score_BJ = values[: 3 * num_places].view(3, num_rows, num_positions)
    return Picks(integers[:num_places].view(num_rows, num_positions), best_BJ, second_BJ, score_BJ, is_finite_BJ)


def _noise(minus_u_2Q: torch.Tensor) -> torch.Tensor:
    """Return the Gumbel numbers that `decoding.noise` makes of a token's number and of its block's; overwrites both."""
    above_Q, of_block_Q = minus_u_2Q.log1p_().neg_()
    noise_Q: torch.Tensor = above_Q.add_(of_block_Q.div_(BLOCK)).log_().neg_()
    return noise_Q


class _Functions(NamedTuple):
    """The functions of the library for one type of logits."""

    begin: Callable[..., int]
    finish: Callable[..., None]
    num_candidates: int  # that the kernel lists for each position


@cache
def _functions(built: ctypes.CDLL, name: str) -> _Functions:
    begin, finish = built[name], built.dray_finish_picks
    begin.argtypes = [ctypes.POINTER(_Inputs), ctypes.POINTER(_Outputs)]
    finish.argtypes = [ctypes.POINTER(_Outputs), _INTEGER, _POINTER]
    begin.restype, finish.restype, built.dray_num_candidates.restype = _INTEGER, None, _INTEGER
    return _Functions(begin, finish, int(built.dray_num_candidates()))
