"""Work: what the stages of a target are told. Plain data, the same for all stages, but the last one gets a Finish.

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
from decoding.sequence import Sequence, TokenLogprobs


@dataclass(frozen=True)
class Copy:
    """The first `length` positions of slot `target` become those of slot `source`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Swap:
    """Two slots change places: the first positions of each, as many as its length says."""

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
        """Answer nothing."""
        return None


@dataclass(frozen=True)
class Logits:
    """The logits themselves are wanted: for a measurement, not for a round."""

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Copy the logits to the host."""
        return logits.cpu()


@dataclass(frozen=True)
class Judge:
    """A request's draft is judged."""

    request: ScoreRequest

    def of(self, logits_BJV: torch.Tensor, dtype: torch.dtype) -> list[RowVerdict]:
        """Return a verdict for each row."""
        return judge(_moved(self.request, logits_BJV.device), logits_BJV, dtype).result()


@dataclass(frozen=True)
class Decide:
    """The next token of a single row is decided."""

    rows: Rows
    accepted: tuple[int, ...]
    num_logprobs: int | None

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> RowVerdict:
        """Return the decision."""
        logits_V = logits.flatten(0, -2)[0]
        return decide(_moved(self.rows, logits.device), self.accepted, logits_V, self.num_logprobs)


@dataclass(frozen=True)
class Score:
    """The tokens that follow a single row's are scored."""

    following: tuple[int, ...]
    num_top: int

    def of(self, logits: torch.Tensor, dtype: torch.dtype) -> list[TokenLogprobs]:
        """Return the log-probabilities of each of them."""
        return token_logprobs(logits.flatten(0, -2), list(self.following), self.num_top)


_CPU = torch.device("cpu")
Finish = Nothing | Logits | Judge | Decide | Score


def do(stage: Stage, work: Work, fed: torch.Tensor, finish: Finish) -> Any:
    """Do the work on this stage. Return hidden states, or on the last stage what `finish` makes of the logits."""
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


class _Tokens:
    """A sequence as verification needs it: its tokens, or only how many there are."""

    def __init__(self, sequence: Sequence, needs_tokens: bool) -> None:
        self._length, num_prompt = len(sequence), len(sequence.prompt_token_ids)
        self.prompt_token_ids: Seq[int] = range(num_prompt)
        self.token_ids: Seq[int] = list(sequence.token_ids) if needs_tokens else ()

    def __len__(self) -> int:
        return self._length


def to_send(rows: Rows) -> Rows:
    """Copy rows to the CPU, with no more of their sequences than verification needs."""
    needs_tokens = rows.sampling.penalties_3B is not None
    tokens = tuple(cast(Sequence, _Tokens(sequence, needs_tokens)) for sequence in rows.sequences)
    return Rows(tokens, _moved(rows.sampling, _CPU), rows.num_draft_tokens, rows.verification)


def request_to_send(request: ScoreRequest) -> ScoreRequest:
    """Copy a request to the CPU, with no more of its sequences than verification needs."""
    return ScoreRequest(to_send(request.rows), _moved(request.draft, _CPU), request.num_logprobs)


def _moved(value: Any, device: torch.device) -> Any:
    """Copy data with all tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _moved(getattr(value, name), device) for name in names})
    return value
