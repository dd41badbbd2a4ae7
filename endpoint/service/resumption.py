"""Resumption: a text that is written again from its beginning, of which its reader has a part.

The reader is the ingress, whose engine was lost, or the client, whose ingress was lost.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

from actors.engine.deltas import Delta


class Reached(NamedTuple):
    """How much of a sample its reader has. It goes through the gate as a plain tuple."""

    num_tokens: int = 0
    checksum: int = 0  # of these tokens
    has_ended: bool = False
    num_characters: int = 0  # that are shown
    rounds: tuple[tuple[tuple[int, int], int], ...] = ()  # as the counts of an answer give them (`Choice.rounds`)
    num_events: int = 0  # of a stream whose events are numbered
    fingerprint: str = ""  # of engine and chat: no other model goes on with the text

    def after(self, delta: Delta) -> Reached:
        """Return how far it has come with another delta."""
        return self._replace(
            num_tokens=self.num_tokens + len(delta.token_ids),
            checksum=crc32(array("q", delta.token_ids).tobytes(), self.checksum),
            has_ended=self.has_ended or delta.ending is not None,
        )


class Resumption:
    """One engine's deltas, each split where its reader's part of the text ends."""

    def __init__(self) -> None:
        self._written: dict[int, Reached] = {}  # again

    def new(self, deltas: list[Delta], delivered: dict[int, Reached]) -> list[Delta]:
        """Return the parts of these deltas that are new to a reader, and count them as delivered. Raises as `split`."""
        found = list[Delta]()
        for delta in deltas:
            had = delivered.get(delta.index, Reached())
            if (new := self.split(delta, had)[1]) is not None:
                found.append(new)
                delivered[delta.index] = had.after(new)
        return found

    def split(self, delta: Delta, had: Reached) -> tuple[Delta | None, Delta | None]:
        """Return the part of a delta that the reader `had`, and what is new. Raises RuntimeError for another text."""
        written, num_tokens = self._written.get(delta.index, Reached()), len(delta.token_ids)
        self._written[delta.index] = written.after(delta)
        num_known = min(had.num_tokens - written.num_tokens, num_tokens)
        has_new, ends = num_known < num_tokens, delta.ending is not None and not had.has_ended
        known = replace(
            delta,
            token_ids=delta.token_ids[:num_known],
            num_accepted=min(delta.num_accepted, num_known),
            logprobs=delta.logprobs[:num_known],
            ending=None if has_new or ends else delta.ending,
            rejected=(),
        )
        written = written.after(known)
        ends_well = delta.ending is not None and delta.ending.error is None
        is_behind = written.num_tokens < had.num_tokens
        is_other = ends_well if is_behind else written.checksum != had.checksum
        if is_other or (had.has_ended and has_new):
            raise RuntimeError("a process was lost, and another one does not write what it had written")
        new = delta
        if num_known:
            new = replace(
                delta,
                token_ids=delta.token_ids[num_known:],
                num_accepted=max(0, delta.num_accepted - num_known) if has_new else 0,
                num_drafted=max(0, delta.num_drafted - num_known) if has_new else 0,
                logprobs=delta.logprobs[num_known:],
                rejected=delta.rejected if has_new else (),
            )
        return known if known.token_ids or known.ending else None, new if has_new or ends else None
