"""ScoredText: a prompt and the continuations of it that are scored, with their log-probabilities in the end.

A text becomes rows of an engine, one for each continuation. While a row is read, the log-probabilities of its own
tokens are asked for; it writes nothing and is never drafted for. The first row of a text also asks for the first tokens
of all other continuations, which stand behind the same position. So a label of one token costs no forward of its own,
and the other rows ask for nothing behind the prompt.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope
from decoding.sequence import AskedScores, Sequence, TokenLogprobs


@dataclass(eq=False)
class ScoredText:
    """A prompt, continuations of it, and for each token of each continuation its log-probability.

    A token's is that under the target's raw logits, behind the prompt and the tokens of the continuation before it.
    `tag` belongs to the caller. A text ends with its scores or with an error.
    """

    prompt_token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    num_top: int = 0  # likely tokens that are wanted beside each token
    tag: Any = None
    has_ranks: bool = False  # whether the rank of each token among all is wanted, too
    scope: Scope = ONE_FOR_ALL  # the texts that may be read together with it

    scores: list[list[TokenLogprobs]] = field(default_factory=list)  # of each continuation; once it is finished
    num_cached_tokens: int = 0  # the first ones, of prompt and first continuation, that another text had read
    error: str | None = None
    is_finished: bool = False
    _rows: list[Sequence] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def whole(cls, token_ids: Seq[int], num_top: int = 0, **fields: Any) -> "ScoredText":
        """Return a text with these other fields of which all tokens but the first are scored."""
        return cls(tuple(token_ids[:1]), (tuple(token_ids[1:]),), num_top, **fields)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest continuation."""
        return max(map(len, self.continuations), default=0)

    def rows(self, *, asks_for_others: bool = True) -> list[Sequence]:
        """Return new rows that score this text, none if nothing is asked for; those of an earlier call no longer count.

        Unless the engine can ask for tokens that do not follow, each row asks for its own alone.
        """
        last = len(self.prompt_token_ids) - 1
        begun = [number for number, continuation in enumerate(self.continuations) if continuation]
        longer = [number for number in begun if len(self.continuations[number]) > 1]
        reading = (longer or begun[:1]) if asks_for_others else begun
        self._rows = []
        for place, number in enumerate(reading):
            firsts = [number] if not asks_for_others else [] if place else begun
            later = [(last + index, token) for index, token in enumerate(self.continuations[number]) if index]
            asked = AskedScores(
                (*((last, self.continuations[first][0]) for first in firsts), *later),
                (*firsts, *[number] * len(later)),
                self.num_top,
                self.has_ranks,
            )
            token_ids = (*self.prompt_token_ids, *self.continuations[number])
            row = Sequence.create(token_ids, SamplingParams(), scope=self.scope)
            row.asked, row.max_tokens = asked, self.longest - len(self.continuations[number])  # all equally long
            self._rows.append(row)
        return self._rows

    def collect(self) -> None:
        """End with what the rows found, or with the error of one of them."""
        if self.is_finished:
            return
        if failed := next((row.error for row in self._rows if row.error is not None), None):
            self.fail(failed)
            return
        self.scores, self.is_finished = [[] for _ in self.continuations], True
        for row in self._rows:
            assert row.asked is not None
            for owner, logprob in zip(row.asked.owners, row.asked.found, strict=True):
                self.scores[owner].append(logprob)
        if self._rows:
            self.num_cached_tokens = self._rows[0].num_cached_tokens

    def fail(self, message: str) -> None:
        """End with an error."""
        self.error, self.is_finished, self.scores = message, True, []
