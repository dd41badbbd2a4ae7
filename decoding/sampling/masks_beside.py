"""MasksBeside: masks that are computed in another thread, while this one computes the forward of the round on the CPU.

All that a mask depends on is known before the forward: the committed tokens and the drafted ones. llguidance computes
the masks of all rows in a call or two, which let other threads go on. So they are there when the logits are, and tokens
are picked among those that a grammar allows: no pick has to be checked, or made again. On a GPU no thread is needed,
since the host waits for the device anyway (`judging.judge`).

Shapes: R rows with a grammar, J positions, W words of 32 token ids, X = 32 W token ids.
"""

import os
import time
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from decoding.grammar.matcher import Matcher
from decoding.sampling.scores import NEVER
from decoding.sampling.token_masks import TokenMasks
from decoding.sequence import Sequence

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

    from decoding.sampling.judging import ScoreRequest

_MOST_WAITED = 0.1  # of the time of a forward
_PAUSE = 32  # rounds
_MOST_THREADS = 4  # of llguidance
_BIASES = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, 0.0, NEVER).astype(np.float32)  # of the bits of a byte


class MasksBeside:
    """The masks of one round at a time. Rounds do without them for a while if they take longer than the forward."""

    def __init__(self) -> None:
        """Begin with nothing asked for."""
        self._pending: Future[TokenMasks | None] | None = None
        self._began = 0.0
        self._num_paused = 0

    def begin(self, request: "ScoreRequest") -> None:
        """Begin to compute the masks of a request. Until `take` no other thread may use the rows' matchers."""
        if not request.rows.have_grammars:
            return
        if self._num_paused:
            self._num_paused -= 1
            return
        drafts = request.draft_on_host
        self._pending = _thread().submit(masks_at_once, request.rows.sequences, *drafts)
        self._began = time.perf_counter()

    def take(self) -> TokenMasks | None:
        """Return the masks once they are there; None if there are none (`masks_at_once`), or none were begun."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        asked = time.perf_counter()
        masks = pending.result()
        if time.perf_counter() - asked > _MOST_WAITED * (asked - self._began):
            self._num_paused = _PAUSE
        return masks


def masks_at_once(sequences: Seq[Sequence], drafted: Seq[Seq[int]], num_drafted: Seq[int]) -> TokenMasks | None:
    """Return the masks behind the committed tokens of all rows with a grammar, and behind their drafted tokens.

    They are those that `TokenMasks.of` returns. There are none (None) if llguidance meets an error, or if nothing may
    follow somewhere: `TokenMasks.of` knows what to do there, and why nothing follows.
    """
    asked: list[_Asked] = []
    for row, sequence in enumerate(sequences):
        if (matcher := sequence.matcher) is not None:
            inner = matcher.behind(sequence.output_token_ids)
            if inner is None:
                return None
            asked.append(_Asked(row, matcher, inner, matcher.before_end(drafted[row][: num_drafted[row]])))
    width = 1 + max(map(len, drafted))
    packed_RJW = np.full((len(asked), width, asked[0].matcher.num_words), -1, dtype=np.int32)
    memory = packed_RJW.ctypes.data, packed_RJW[0, 0].nbytes, len(asked) * width
    plain = [(each.inner, index * width) for index, each in enumerate(asked) if not each.drafted]
    ahead = [(each.inner, index * width, each.drafted) for index, each in enumerate(asked) if each.drafted]
    if plain:
        _executor().unsafe_compute_mask_ptr(plain, *memory)
    if ahead:  # where llguidance does not allow a drafted token it stops, and everything is allowed behind it
        _executor().unsafe_compute_mask_ptr_with_draft_token(ahead, *memory)
    are_well = [each.matcher.is_well() for each in asked]
    if not all(are_well) or not packed_RJW.any(-1).all():
        return None
    biases_RJX = torch.from_numpy(_BIASES[packed_RJW.view(np.uint8)]).flatten(-2)
    return TokenMasks(tuple(each.row for each in asked), torch.from_numpy(packed_RJW), biases_RJX)


class _Asked(NamedTuple):
    row: int
    matcher: Matcher
    inner: "LLMatcher"  # which stands behind the row's committed tokens
    drafted: list[int]  # up to an end token


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")


@cache
def _executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor(min(_MOST_THREADS, max(1, (os.cpu_count() or 1) - 1)))
