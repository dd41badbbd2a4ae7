"""Draft messages: what a generator and a draft actor send each other in a round, as plain arrays.

A request says which tokens each row has committed since the last one, and how many to draft. A row is known by its
slot, and checked by its length: its new tokens begin at `start`, and a draft actor that knows another length asks for
the whole row. The reply holds the drafted tokens and, under rejection, the distribution that each was drawn from.

Shapes: S swaps, R rows, T new tokens of all rows, N drafted tokens of all rows, M candidates of a distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.sampling_params import SamplingParams

_UNKNOWN = -1  # in place of a number of drafted tokens: the row is not known, send it whole
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class RowOrigin:
    """What a draft actor needs of a row that it does not know, beside the row's tokens."""

    num_prompt_tokens: int
    params: SamplingParams
    noise_key: int


@dataclass(frozen=True)
class RowUpdate:
    """The tokens that a row has committed since the last request; all its tokens if it has an origin."""

    slot: int  # after the swaps of the request
    max_draft_tokens: int
    start: int  # the row's length before these tokens
    token_ids: Seq[int]
    origin: RowOrigin | None = None


@dataclass(frozen=True)
class DraftRequest:
    """The updates of R rows, in one array for each field. Swaps of slots come first."""

    swaps_S2: Ints
    slots_R: Ints
    max_draft_tokens_R: Ints
    starts_R: Ints
    num_tokens_R: Ints
    token_ids_T: Ints
    origins: tuple[RowOrigin | None, ...]

    @classmethod
    def of(cls, swaps: Seq[tuple[int, int]], updates: Seq[RowUpdate]) -> DraftRequest:
        """Return the request with these swaps and updates."""
        return cls(
            _ints(swaps).reshape(-1, 2),
            _ints([update.slot for update in updates]),
            _ints([update.max_draft_tokens for update in updates]),
            _ints([update.start for update in updates]),
            _ints([len(update.token_ids) for update in updates]),
            _ints([token_id for update in updates for token_id in update.token_ids]),
            tuple(update.origin for update in updates),
        )

    def updates(self) -> Iterator[RowUpdate]:
        """Yield the update of each row."""
        token_ids = _split(self.token_ids_T, self.num_tokens_R)
        columns = (self.slots_R.tolist(), self.max_draft_tokens_R.tolist(), self.starts_R.tolist())
        for slot, max_draft_tokens, start, tokens, origin in zip(*columns, token_ids, self.origins, strict=True):
            yield RowUpdate(slot, max_draft_tokens, start, tokens, origin)

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        return _num_bytes(self)

    @property
    def num_new_row_bytes(self) -> int:
        """Return the size of the tokens of rows that are sent whole."""
        is_new_R = [origin is not None for origin in self.origins]
        return int(self.num_tokens_R[is_new_R].sum()) * self.token_ids_T.itemsize


@dataclass(frozen=True)
class Distributions:
    """The distributions of N drafted tokens: a token that is not among the M candidates has probability 0."""

    ids_NM: Ints
    probs_NM: npt.NDArray[np.float32]

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        return _num_bytes(self)


@dataclass(frozen=True)
class DraftReply:
    """The drafts of the R rows of a request, in its order."""

    num_tokens_R: Ints
    token_ids_N: Ints
    distributions: Distributions | None = field(default=None, kw_only=True)  # under rejection

    @classmethod
    def of(cls, drafts: Iterable[Seq[int] | None], distributions: Distributions | None = None) -> DraftReply:
        """Return the reply with these drafts; None stands for a row that is not known."""
        drafts = list(drafts)
        counts = _ints([_UNKNOWN if draft is None else len(draft) for draft in drafts])
        token_ids = _ints([token_id for draft in drafts for token_id in draft or ()])
        return cls(counts, token_ids, distributions=distributions)

    def drafts(self) -> list[list[int] | None]:
        """Return the drafted tokens of each row; None for a row that must be sent whole."""
        drafts = _split(self.token_ids_N, np.maximum(self.num_tokens_R, 0))
        return [
            None if count == _UNKNOWN else draft
            for count, draft in zip(self.num_tokens_R.tolist(), drafts, strict=True)
        ]

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays, those of the distributions included."""
        return _num_bytes(self) + (0 if self.distributions is None else self.distributions.num_bytes)


def _ints(values: Seq[Any]) -> Ints:
    return np.array(values, dtype=np.int32)


def _split(values: Ints, lengths: Ints) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])] if lengths.size else []


def _num_bytes(message: DraftRequest | Distributions | DraftReply) -> int:
    return sum(value.nbytes for value in vars(message).values() if isinstance(value, np.ndarray))
