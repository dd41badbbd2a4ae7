"""Picks on the CPU: a kernel finds the few tokens of each position that could win, and torch computes their noise.

The picks are those of `decoding.sampling.picks.pick_plain`, bit for bit: the kernel leaves out only tokens that are
clearly not among the two best, and the numbers that decide are made by the operations of `decoding.noise`.

Accept-if-equal, too, is one call: what `decoding.sampling.rules.verify_coupled` says, with its numbers.

Shapes: B rows, K drafted tokens, J positions, V vocabulary, R rows with masks, W words of 32 token ids, Q candidates.
"""

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from decoding.cpu.library import function, library
from decoding.noise import BLOCK, Stream
from decoding.picked import Picks

_NAMES = {torch.float32: "dray_begin_picks_float32", torch.bfloat16: "dray_begin_picks_bfloat16"}
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_POINTERS = _POINTER * 3


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


class _Functions(NamedTuple):
    begin: Callable[..., int]
    finish: Callable[..., None]
    num_candidates: int  # that the kernel lists for each position


@cache  # of what each round asks for
def _functions(built: ctypes.CDLL, name: str) -> _Functions:
    begin = function(name, _INTEGER, ctypes.POINTER(_Inputs), ctypes.POINTER(_Outputs))
    finish = function("dray_finish_picks", None, ctypes.POINTER(_Outputs), _INTEGER, _POINTER)
    num_candidates: Any = function("dray_num_candidates", _INTEGER)
    assert begin is not None and finish is not None, "they are in every library"  # noqa: PT018
    return _Functions(begin, finish, num_candidates())


def pick(logits_BJV: torch.Tensor, inputs: PickInputs, first: int) -> Picks | None:
    """Pick at the J positions from `first` on, among the tokens that the masks allow, under the shared noise.

    None where torch's own operations must do: without the kernels, for a type of numbers that they do not know, and
    where more than a few tokens of a position lie too close together, or its scores overflow.
    """
    (num_rows, num_positions, vocab_size), masks_RJW = logits_BJV.shape, inputs.masks_RJW
    built, name = library(), _NAMES.get(logits_BJV.dtype)
    num_words = 0 if masks_RJW is None else masks_RJW.shape[2]
    if built is None or name is None:
        return None
    if logits_BJV.stride(2) != 1 or (masks_RJW is not None and num_words * 32 < vocab_size):
        return None
    functions = _functions(built, name)
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


class _Verified(ctypes.Structure):
    """What the kernel reads; the fields are explained in verify.h."""

    _fields_ = [
        *(("num_rows", _INTEGER), ("num_positions", _INTEGER)),
        *((name, _POINTER) for name in ("token_ids", "best", "second", "score", "is_at_border", "drafted")),
        *(("drafted_row_stride", _INTEGER), ("drafted_stride", _INTEGER)),
        *(("num_drafted", _POINTER), ("temperature", _POINTER), ("close_call", ctypes.c_float)),
    ]


def verify_coupled(
    picked: Picks,
    drafted_BK: torch.Tensor,
    num_drafted_B: torch.Tensor,
    temperature_B: torch.Tensor,
    close_call: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return the number of accepted tokens, the token behind them, and the first close call of each row, int64 [B].

    None where torch's own operations must do: without the kernels.
    """
    verify = function("dray_verify_coupled", None, ctypes.POINTER(_Verified), _POINTERS)
    if verify is None:
        return None
    num_rows, num_positions = picked.token_ids_BJ.shape
    assert drafted_BK.shape == (num_rows, num_positions - 1), "one position more than drafted tokens"
    is_at_border_BJ = picked.is_at_border_BJ
    if is_at_border_BJ is None:
        is_at_border_BJ = torch.zeros_like(picked.is_finite_BJ)
    numbers = [tensor.contiguous() for tensor in (*picked[:4], is_at_border_BJ)]
    of_rows = [tensor.contiguous() for tensor in (num_drafted_B, temperature_B)]
    read = _Verified(
        *(num_rows, num_positions, *(tensor.data_ptr() for tensor in numbers), drafted_BK.data_ptr()),
        *(drafted_BK.stride(0), drafted_BK.stride(1), *(tensor.data_ptr() for tensor in of_rows), close_call),
    )
    found_3B = torch.empty(3, num_rows, dtype=torch.int64)
    first = found_3B.data_ptr()
    verify(read, _POINTERS(*(first + 8 * num_rows * number for number in range(3))))
    num_accepted_B, next_token_B, first_close_call_B = found_3B
    return num_accepted_B, next_token_B, first_close_call_B
