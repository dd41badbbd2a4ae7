"""Resumption: the tokens that another engine adds to a text that a lost engine had begun."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from actors.engine.deltas import Delta


@dataclass
class Delivered:
    """What was delivered of one sequence: its tokens, and whether it has ended."""

    token_ids: list[int] = field(default_factory=list)
    has_ended: bool = False


class Resumption:
    """One engine's deltas, of which those that were delivered already are skipped after a comparison."""

    def __init__(self, delivered: dict[int, Delivered]) -> None:
        """Continue what was `delivered` of each sequence; it is brought up to date."""
        self._delivered = delivered
        self._num_seen: dict[int, int] = {}

    def new(self, deltas: list[Delta]) -> list[Delta]:
        """Return the part of these deltas that was not delivered yet. Raises RuntimeError for other tokens."""
        return [new for delta in deltas if (new := self._rest(delta)) is not None]

    def _rest(self, delta: Delta) -> Delta | None:
        done, first = self._delivered.setdefault(delta.index, Delivered()), self._num_seen.get(delta.index, 0)
        self._num_seen[delta.index] = num_seen = first + len(delta.token_ids)
        num_known = max(0, min(len(done.token_ids) - first, len(delta.token_ids)))
        is_short = delta.ending is not None and delta.ending.error is None and num_seen < len(done.token_ids)
        is_long = done.has_ended and num_seen > len(done.token_ids)
        if is_short or is_long or list(delta.token_ids[:num_known]) != done.token_ids[first : first + num_known]:
            raise RuntimeError("a replica was lost, and another one does not write what it had written")
        if num_known:
            has_new = num_known < len(delta.token_ids)
            delta = replace(
                delta,
                token_ids=delta.token_ids[num_known:],
                num_accepted=max(0, delta.num_accepted - num_known) if has_new else 0,
                num_drafted=max(0, delta.num_drafted - num_known) if has_new else 0,
                logprobs=delta.logprobs[num_known:],
                rejected=delta.rejected if has_new else (),
            )
        done.token_ids += delta.token_ids
        ends = delta.ending is not None and not done.has_ended
        done.has_ended |= ends
        return delta if delta.token_ids or ends else None
