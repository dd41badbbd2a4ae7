"""How prompts share forwards: rows go end to end, longest first, at most so many tokens at once."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

PREFILL_TOKENS = 2048  # of one prefill forward: bounds its memory
_SMALL_RECTANGLE = 256  # tokens of rows x longest row for whose attention a forward of its own is too much


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
) -> Iterator[list[Piece]]:
    """The pieces of each forward. Rows without tokens need none; starts are 0 by default.

    `may_join` says whether a row may stand beside longer ones: attention by torch runs over the rectangle of rows x
    longest row, so there rows much shorter than the longest go into the next forward.
    """
    firsts = [0] * len(slots) if starts is None else list(starts)
    rest = [Piece(list(row), slot, first) for row, slot, first in zip(token_ids, slots, firsts, strict=True) if row]
    while rest:
        rest.sort(key=lambda piece: -len(piece.tokens))
        batch: list[Piece] = []
        later: list[Piece] = []
        room = PREFILL_TOKENS
        for row, slot, first in rest:
            num_taken = min(room, len(row))
            if batch and (num_taken < len(row) <= PREFILL_TOKENS or not may_join(row, batch)):
                num_taken = 0
            if num_taken:
                batch.append(Piece(row[:num_taken], slot, first))
                room -= num_taken
            if num_taken < len(row):
                later.append(Piece(row[num_taken:], slot, first + num_taken))
        yield batch
        rest = later


def may_join_batch(row: list[int], batch: list[Piece], *, packs_rows: bool, is_fused: bool) -> bool:
    """Whether a row may stand beside longer ones: for a model that takes packed rows or not, in our kernels or not."""
    width = len(batch[0].tokens)
    if not packs_rows:
        return len(row) == width
    if is_fused:  # their attention knows no rectangle
        return True
    rectangle = width * (len(batch) + 1)
    return rectangle <= _SMALL_RECTANGLE or rectangle <= 1.5 * (sum(len(other.tokens) for other in batch) + len(row))
