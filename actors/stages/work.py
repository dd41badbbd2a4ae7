"""What the stages of a target are told: plain data, the same for all of them but for what the last one makes of it.

Shapes: B rows, J positions whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch

from decoding.network.stage import Stage
from decoding.sampling.judging import RowVerdict, ScoreRequest, decide, judge, token_logprobs
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft
from decoding.sequence import Sequence, TokenLogprobs


@dataclass(frozen=True)
class Copy:
    """The first `length` positions of slot `target` become those of slot `source`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Swap:
    """Two slots change places, so many positions of each."""

    first: int
    second: int
    first_length: int
    second_length: int


@dataclass(frozen=True)
class Zero:
    """A slot is cleared."""

    slot: int


Change = Copy | Swap | Zero


@dataclass(frozen=True)
class Work:
    """Changes of slots, and then a forward over some rows of a session; over one row without slots if there is none."""

    session: int | None
    changes: tuple[Change, ...] = ()
    slots: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()  # tokens of each row; no rows: no forward
    num_logits: int = 0  # positions of each row whose logits are wanted: its first ones; without slots its last ones


@dataclass(frozen=True)
class Nothing:
    """No logits are wanted."""

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> None:
        """Nothing."""
        return None

    def of_row(self, row: int) -> Nothing:
        """The same for one row."""
        return self

    def gathered(self, answers: Seq[None]) -> None:
        """Of rows that were done one by one."""
        return None


@dataclass(frozen=True)
class Logits:
    """The logits themselves: for a measurement, not for a round."""

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """They."""
        return logits.cpu()

    def of_row(self, row: int) -> Logits:
        """The same for one row."""
        return self

    def gathered(self, answers: Seq[torch.Tensor | None]) -> torch.Tensor | None:
        """Of rows that were done one by one; not a number where one was given up, None if all were."""
        like = next((answer for answer in answers if answer is not None), None)
        if like is None:
            return None
        return torch.cat([torch.full_like(like, float("nan")) if answer is None else answer for answer in answers])


@dataclass(frozen=True)
class Judge:
    """A question's draft is judged."""

    question: ScoreRequest

    def of(self, logits_BJV: torch.Tensor, dtype: torch.dtype) -> list[RowVerdict]:
        """A verdict for each row."""
        return judge(_moved(self.question, logits_BJV.device), logits_BJV, dtype).result()

    def of_row(self, row: int) -> Judge:
        """The same for one row."""
        return Judge(question_of(self.question, [row]))

    def gathered(self, answers: Seq[list[RowVerdict] | None]) -> list[RowVerdict | None]:
        """Of rows that were done one by one; None for one that was given up."""
        return [None if answer is None else answer[0] for answer in answers]


@dataclass(frozen=True)
class Decide:
    """The next token of a single row is decided."""

    rows: Rows
    accepted: tuple[int, ...]
    num_logprobs: int | None

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> RowVerdict:
        """The decision."""
        logits_V = logits.flatten(0, -2)[0]
        return decide(_moved(self.rows, logits.device), self.accepted, logits_V, self.num_logprobs)

    def of_row(self, row: int) -> Decide:
        """The same: it has a single row."""
        return self

    def gathered(self, answers: Seq[RowVerdict | None]) -> RowVerdict | None:
        """Of that row."""
        return answers[0]


@dataclass(frozen=True)
class Score:
    """The tokens that follow a single row's are scored."""

    following: tuple[int, ...]
    num_top: int

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> list[TokenLogprobs]:
        """One for each of them."""
        return token_logprobs(logits.flatten(0, -2), list(self.following), self.num_top)

    def of_row(self, row: int) -> Score:
        """The same: it has a single row."""
        return self

    def gathered(self, answers: Seq[list[TokenLogprobs] | None]) -> list[TokenLogprobs] | None:
        """Of that row."""
        return answers[0]


_CPU = torch.device("cpu")
Finish = Nothing | Logits | Judge | Decide | Score


def do(stage: Stage, work: Work, fed: torch.Tensor, finish: Finish) -> Any:
    """What comes of the work on this stage: hidden states, or on the last stage what `finish` makes of the logits."""
    for change in work.changes:
        assert work.session is not None, "without a session there are no slots"
        cache = stage.cache(work.session)
        match change:
            case Copy():
                cache.copy(change.source, change.target, change.length)
            case Swap():
                cache.swap(change.first, change.second, change.first_length, change.second_length)
            case Zero():
                cache.zero(change.slot)
    if not work.lengths:
        return None
    if work.session is None:
        out = stage.plain(fed, work.num_logits)
    else:
        every_BJ = torch.arange(work.num_logits).expand(len(work.lengths), -1)
        out = stage.forward(fed, work.starts, work.lengths, every_BJ, work.slots, work.session)
    return finish.of(out, stage.dtype) if stage.layers.has_head else out.cpu()


class _Words:
    """What verification asks a sequence: its tokens, or only how many there are."""

    def __init__(self, sequence: Sequence, needs_tokens: bool) -> None:
        self._length, num_prompt = len(sequence), len(sequence.prompt_token_ids)
        self.prompt_token_ids: Seq[int] = range(num_prompt)
        self.token_ids: Seq[int] = list(sequence.token_ids) if needs_tokens else ()

    def __len__(self) -> int:
        return self._length


def for_travel(rows: Rows) -> Rows:
    """The same rows with no more of their sequences than verification needs."""
    needs_tokens = rows.sampling.penalties_3B is not None
    words = tuple(cast(Sequence, _Words(sequence, needs_tokens)) for sequence in rows.sequences)
    return Rows(words, _moved(rows.sampling, _CPU), rows.num_draft_tokens, rows.verification)


def question_of(question: ScoreRequest, rows: Seq[int]) -> ScoreRequest:
    """What a question asks about some of its rows, ready to travel."""
    draft = question.draft
    if list(rows) != list(range(len(question.rows.sequences))):
        index = torch.tensor(list(rows), device=draft.token_ids_BK.device)
        draft = Draft(
            draft.token_ids_BK[index],
            draft.num_draft_tokens_B[index],
            None if draft.probs_BKV is None else draft.probs_BKV[index],
            None if draft.max_draft_tokens_B is None else tuple(draft.max_draft_tokens_B[row] for row in rows),
        )
    return ScoreRequest(
        for_travel(question.rows.take(rows)), _moved(draft, _CPU), tuple(question.num_logprobs[row] for row in rows)
    )


def _moved(value: Any, device: torch.device) -> Any:
    """The same data with all tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _moved(getattr(value, name), device) for name in names})
    return value
