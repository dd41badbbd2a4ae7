"""Prefill batches: prompts share forwards end to end, longest first, up to a number of tokens."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

PREFILL_TOKENS = 2048  # of one prefill forward, at most: bounds its memory
CPU_PREFILL_TOKENS = 512  # and on a CPU, where more of them are read no faster
_SMALL_RECTANGLE = 256  # rows x longest row; attention over a smaller rectangle is cheaper than a forward of its own


class Piece(NamedTuple):
    """Tokens that one forward writes into a slot, from `start` on."""

    tokens: list[int]
    slot: int
    start: int


def batches(
    slots: Seq[int],
    token_ids: Seq[Seq[int]],
    starts: Seq[int] | None,
    may_join: Callable[[list[int], list[Piece]], bool],
    *,
    is_on_cpu: bool,
) -> Iterator[list[Piece]]:
    """Yield the pieces of each forward. Rows without tokens have none; starts are 0 by default.

    `may_join` tells whether a row may share a forward with longer ones: attention by torch runs over the rectangle of
    rows x longest row, so there rows much shorter than the longest wait for the next forward.
    """
    firsts = [0] * len(slots) if starts is None else list(starts)
    most = min(PREFILL_TOKENS, CPU_PREFILL_TOKENS) if is_on_cpu else PREFILL_TOKENS
    rest = [Piece(list(row), slot, first) for row, slot, first in zip(token_ids, slots, firsts, strict=True) if row]
    while rest:
        rest.sort(key=lambda piece: -len(piece.tokens))
        batch: list[Piece] = []
        later: list[Piece] = []
        room = most
        for row, slot, first in rest:
            num_taken = min(room, len(row))
            if batch and (num_taken < len(row) <= most or not may_join(row, batch)):
                num_taken = 0
            if num_taken:
                batch.append(Piece(row[:num_taken], slot, first))
                room -= num_taken
            if num_taken < len(row):
                later.append(Piece(row[num_taken:], slot, first + num_taken))
        yield batch
        rest = later


def may_join_batch(row: list[int], batch: list[Piece], *, packs_rows: bool, attends_in_place: bool) -> bool:
    """Tell whether a row may share a forward with longer ones, depending on how the model runs."""
    width = len(batch[0].tokens)
    if not packs_rows:
        return len(row) == width
    if attends_in_place:  # our kernels' attention has no rectangle
        return True
    rectangle = width * (len(batch) + 1)
    return rectangle <= _SMALL_RECTANGLE or rectangle <= 1.5 * (sum(len(other.tokens) for other in batch) + len(row))
