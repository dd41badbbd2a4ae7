"""Deltas: what an engine's steps add to sequences, for callers that want tokens as they come."""

import asyncio
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.sequence import FinishReason, Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence ended (`decoding.sequence.Sequence` has the same names)."""

    finish_reason: FinishReason
    stop_reason: str | int | None
    error: str | None
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What a round added to one sequence: the first `num_accepted` of its tokens are the draft's, of `num_drafted`."""

    index: int  # of the sequence among those that were asked for together
    token_ids: tuple[int, ...]
    num_accepted: int = 0
    num_drafted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, where they were wanted
    ending: Ending | None = None  # with the last delta of a sequence
    rejected: tuple[int, ...] = ()  # drafted where the last of the tokens stands, and behind it


class Growth:
    """A sequence as it was after the last step, so that what is new can be told."""

    def __init__(self, index: int, sequence: Sequence) -> None:
        """Begin with a sequence that has not run yet; its deltas will have this index."""
        self.sequence = sequence
        self._index = index
        self._length = self._num_drafted = self._num_accepted = 0  # at the last look

    def look(self) -> Delta | None:
        """Return what the last step added; None if that is nothing. After the ending nothing is asked any more."""
        sequence = self.sequence
        new = tuple(sequence.output_token_ids[self._length :])
        num_drafted = sequence.num_draft_tokens - self._num_drafted
        num_accepted = sequence.num_accepted_tokens - self._num_accepted
        ending = None
        if sequence.finish_reason is not None:
            ending = Ending(sequence.finish_reason, sequence.stop_reason, sequence.error, sequence.num_cached_tokens)
        elif not new:
            return None
        logprobs = tuple(sequence.logprobs[self._length :])
        self._length += len(new)
        self._num_drafted, self._num_accepted = sequence.num_draft_tokens, sequence.num_accepted_tokens
        rejected = sequence.rejected_token_ids if new else ()
        return Delta(self._index, new, num_accepted, num_drafted, logprobs, ending, rejected)


class DeltaStream:
    """Deltas of sequences that were asked for together, on their way from an engine's steps to their caller."""

    def __init__(self, sequences: Seq[Sequence], send_every_s: float) -> None:
        """Index deltas as in `sequences`, and send them in batches, at most one per `send_every_s`."""
        self.deltas: list[Delta] = []
        self.begins = False  # one of the sequences has just got the first slot; not sent yet
        self.is_new = asyncio.Event()
        self._growing = [Growth(index, sequence) for index, sequence in enumerate(sequences)]
        self._waiting: frozenset[Sequence] | None = frozenset(sequences)  # None: one of them has begun
        self._send_every_s, self._sent_at = send_every_s, float("-inf")

    def begin(self, up_next: set[Sequence]) -> None:
        """Mark the stream as begun, if one of its sequences is the first of them in `up_next`."""
        if self._waiting is not None and not self._waiting.isdisjoint(up_next):
            self._waiting, self.begins = None, True
            self.is_new.set()

    def look(self, send_every_s: float) -> None:
        """Take what the last step added, to be sent where a sequence ended or after the longer of both intervals."""
        new = [delta for growth in self._growing if (delta := growth.look()) is not None]
        has_ending = any(delta.ending is not None for delta in new)
        if has_ending:
            self._growing = [growth for growth in self._growing if not growth.sequence.is_finished]
        self.deltas += new
        now = time.monotonic()
        if new and (has_ending or now >= self._sent_at + max(send_every_s, self._send_every_s)):
            self._sent_at = now
            self.is_new.set()
