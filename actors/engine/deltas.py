"""Deltas: what an engine's steps add to sequences, for those who want tokens as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from decoding.sequence import FinishReason, Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence ended, and the counts of its rounds (`decoding.sequence.Sequence` has the same names).

    Of what was written twice, because memory ran out or an engine was lost, the first time counts.
    """

    finish_reason: FinishReason
    stop_reason: str | int | None
    error: str | None
    num_cached_tokens: int
    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_rounds_by_draft: Mapping[tuple[int, int], int]  # (drafted, accepted) -> rounds


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step added to one sequence: the first `num_accepted` of its tokens are the draft's, of `num_drafted`."""

    index: int  # of the sequence among those that were asked for together
    token_ids: tuple[int, ...]
    num_accepted: int = 0
    num_drafted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, where they were wanted
    ending: Ending | None = None  # with the last delta of a sequence


def counts_of_rounds(rounds: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """The counts of an Ending whose rounds these are, (drafted, accepted) -> rounds."""
    return {
        "num_rounds": sum(rounds.values()),
        "num_draft_tokens": sum(drafted * count for (drafted, _), count in rounds.items()),
        "num_accepted_tokens": sum(accepted * count for (_, accepted), count in rounds.items()),
        "num_rounds_by_draft": dict(rounds),
    }


class TextChangedError(RuntimeError):
    """A sequence began again and did not write what it had written: only under verification "rejection"."""


class Growth:
    """Looks at a sequence after every step, between two steps, and says what is new."""

    def __init__(self, index: int, sequence: Sequence) -> None:
        """Of a sequence that has not run yet; its deltas will have this index."""
        self.sequence = sequence
        self._index = index
        self._told: list[int] = []  # output tokens that are in a delta
        self._length = self._num_drafted = self._num_accepted = 0  # at the last look
        self._rounds: Counter[tuple[int, int]] = Counter()  # those that are in a delta
        self._has_ended = False

    def begin_again(self) -> None:
        """The sequence is as it was before its first round."""
        self._length = self._num_drafted = self._num_accepted = 0

    def look(self) -> Delta | None:
        """What the last step added; None if that is nothing. Raises TextChangedError.

        A sequence that began again (memory had run out) is silent until it is where it was, and so are its counts:
        those of all deltas add up to those of the ending.
        """
        sequence, num_told = self.sequence, len(self._told)
        if self._has_ended:
            return None
        num_accepted = sequence.num_accepted_tokens - self._num_accepted
        num_drafted = sequence.num_draft_tokens - self._num_drafted
        output, before = sequence.output_token_ids, self._length
        self._length = len(output)
        self._num_drafted, self._num_accepted = sequence.num_draft_tokens, sequence.num_accepted_tokens
        is_short = sequence.is_finished and sequence.error is None and len(output) < num_told
        if is_short or (before < num_told and output[before:num_told] != self._told[before : len(output)]):
            raise TextChangedError("memory ran out, and the text that was begun cannot be continued; try again")
        new = tuple(output[num_told:])
        self._told += new
        num_repeated = max(0, num_told - before)
        num_drafted = max(0, num_drafted - num_repeated) if new else 0
        num_accepted = min(len(new), max(0, num_accepted - num_repeated))
        if new:
            self._rounds[num_drafted, num_accepted] += 1
        ending = None
        if sequence.is_finished:
            self._has_ended, ending = True, self._ending()
        if not new and ending is None:
            return None
        return Delta(
            self._index,
            new,
            num_accepted,
            num_drafted,
            tuple(sequence.logprobs[num_told : len(output)]),
            ending,
        )

    def _ending(self) -> Ending:
        sequence = self.sequence
        assert sequence.finish_reason is not None
        return Ending(
            sequence.finish_reason,
            sequence.stop_reason,
            sequence.error,
            sequence.num_cached_tokens,
            **counts_of_rounds(self._rounds),
        )


class Growths:
    """Of sequences that were asked for together."""

    def __init__(self, sequences: Seq[Sequence]) -> None:
        """Indexes are those in `sequences`."""
        self._growing = [Growth(index, sequence) for index, sequence in enumerate(sequences)]

    def begin_again(self) -> None:
        """All that have not ended are as they were before their first rounds."""
        for growth in self._growing:
            growth.begin_again()

    def look(self) -> list[Delta]:
        """What the last step added to any of them. Raises TextChangedError."""
        deltas = [delta for growth in self._growing if (delta := growth.look()) is not None]
        if any(delta.ending is not None for delta in deltas):
            self._growing = [growth for growth in self._growing if not growth.sequence.is_finished]
        return deltas
