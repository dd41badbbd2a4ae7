"""Resumption: what another engine writes of a text that a lost one had begun, without what is handed on already."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from actors.engine.deltas import Delta, counts_of_rounds


@dataclass
class Told:
    """What has been handed on of a sequence: its tokens, the rounds that they came in, and whether that was all."""

    token_ids: list[int] = field(default_factory=list)
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    has_ended: bool = False


class Resumption:
    """Skips what has been handed on already, and sees that it is the same."""

    def __init__(self, told: dict[int, Told]) -> None:
        """`told` is of each sequence, and grows."""
        self._told, self._is_first = told, not told
        self._num_seen: dict[int, int] = {}

    def new(self, deltas: list[Delta]) -> list[Delta]:
        """Of these deltas, what is not handed on yet."""
        return [new for delta in deltas if (new := self._rest(delta)) is not None]

    def _rest(self, delta: Delta) -> Delta | None:
        told, first = self._told.setdefault(delta.index, Told()), self._num_seen.get(delta.index, 0)
        self._num_seen[delta.index] = num_seen = first + len(delta.token_ids)
        num_known = max(0, min(len(told.token_ids) - first, len(delta.token_ids)))
        is_short = delta.ending is not None and delta.ending.error is None and num_seen < len(told.token_ids)
        is_long = told.has_ended and num_seen > len(told.token_ids)
        if is_short or is_long or list(delta.token_ids[:num_known]) != told.token_ids[first : first + num_known]:
            raise RuntimeError("a replica was lost, and another one does not write what it had written")
        if num_known:
            has_new = num_known < len(delta.token_ids)
            delta = replace(
                delta,
                token_ids=delta.token_ids[num_known:],
                num_accepted=max(0, delta.num_accepted - num_known) if has_new else 0,
                num_drafted=max(0, delta.num_drafted - num_known) if has_new else 0,
                logprobs=delta.logprobs[num_known:],
            )
        told.token_ids += delta.token_ids
        if delta.token_ids:
            told.rounds[delta.num_drafted, delta.num_accepted] += 1
        if delta.ending is None or told.has_ended:
            return delta if delta.token_ids else None
        told.has_ended = True
        return (
            delta if self._is_first else replace(delta, ending=replace(delta.ending, **counts_of_rounds(told.rounds)))
        )
