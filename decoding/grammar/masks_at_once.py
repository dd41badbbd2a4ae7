"""Masks at once: where many sequences stand in their grammars, and which tokens may come next, in few calls.

llguidance lets other threads go on in these calls, as it does not where it is asked about one sequence after the other.

Shapes: R sequences, J positions, W words of 32 token ids.
"""

import os
from collections.abc import Sequence as Seq
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.grammar.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

_MOST_THREADS = 4  # of llguidance


class Place(NamedTuple):
    """Place of a sequence in its grammar: behind committed output tokens, and then behind each drafted one."""

    matcher: Matcher
    committed: Seq[int]
    drafted: Seq[int]


def masks_at_once(places: Seq[Place], num_positions: int) -> npt.NDArray[np.int32] | None:
    """Return the masks [R, J, W] behind the committed tokens and behind the drafted ones, at most J - 1 of a sequence.

    They are those that `Matcher.mask` returns; everything is allowed where that is None. Bit i of word w stands for
    token id 32 * w + i. There are none (None) if llguidance meets an error, or if nothing may follow somewhere:
    `Matcher.mask` knows what to do there, and why nothing follows.
    """
    inner = _read(places)
    if inner is None:
        return None
    packed_RJW = np.full((len(places), num_positions, places[0].matcher.num_tokenizer_words), -1, dtype=np.int32)
    memory = packed_RJW.ctypes.data, packed_RJW[0, 0].nbytes, len(places) * num_positions
    plain: list[tuple[LLMatcher, int]] = []
    ahead: list[tuple[LLMatcher, int, list[int]]] = []
    for number, (place, its) in enumerate(zip(places, inner, strict=True)):
        if drafted := place.matcher.before_end(place.drafted):
            ahead.append((its, number * num_positions, drafted))
        else:
            plain.append((its, number * num_positions))
    if plain:
        _executor().unsafe_compute_mask_ptr(plain, *memory)
    if ahead:  # where llguidance does not allow a drafted token it stops, and everything is allowed behind it
        _executor().unsafe_compute_mask_ptr_with_draft_token(ahead, *memory)
    failed = [place.matcher.drop_if_failed() for place in places]
    return None if any(failed) else packed_RJW


def _read(places: Seq[Place]) -> "list[LLMatcher] | None":
    """Let all matchers read the committed tokens; return llguidance's own, or None if one of them fails."""
    unread = [place.matcher.unread(place.committed) for place in places]
    for number in range(max((len(tokens) for tokens in unread if tokens), default=0)):
        step = [
            (place.matcher.inner, tokens[number])
            for place, tokens in zip(places, unread, strict=True)
            if tokens is not None and number < len(tokens)
        ]
        _executor().consume_token_par(step)  # one that is not allowed leaves an error
    for place, tokens in zip(places, unread, strict=True):
        if tokens:
            place.matcher.note_read(tokens)
    inner = [place.matcher.behind(place.committed) for place in places]
    return None if None in inner else inner  # type: ignore[return-value]


@cache
def _executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor(min(_MOST_THREADS, max(1, len(os.sched_getaffinity(0)) - 1)))
