"""Draft messages: what a generator and a draft actor send each other in a round, as plain arrays.

A request says which tokens each row has committed since the last one, and how many to draft. A row is known by its
slot, and checked by its length: its new tokens begin at `start`, and a draft actor that knows another length asks for
the whole row. The reply holds the drafted tokens and, unless coupled, the distribution that each was drawn from.

Shapes: S swaps, R rows, T new tokens of all rows, N drafted tokens of all rows, M candidates of a distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope

_UNKNOWN = -1  # in place of a number of drafted tokens: the row is not known, send it whole
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class RowOrigin:
    """What a draft actor needs of a row that it does not know, beside the row's tokens."""

    num_prompt_tokens: int
    params: SamplingParams
    noise_key: int
    scope: Scope = ONE_FOR_ALL


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
    rows_R4: Ints  # slot, max_draft_tokens, start and number of tokens
    token_ids_T: Ints
    origins: tuple[RowOrigin | None, ...]

    @classmethod
    def of(cls, swaps: Seq[tuple[int, int]], updates: Seq[RowUpdate]) -> DraftRequest:
        """Return the request with these swaps and updates."""
        rows = [(update.slot, update.max_draft_tokens, update.start, len(update.token_ids)) for update in updates]
        return cls(
            _ints(swaps).reshape(-1, 2),
            _ints(rows).reshape(-1, 4),
            _ints([token_id for update in updates for token_id in update.token_ids]),
            tuple(update.origin for update in updates),
        )

    def updates(self) -> Iterator[RowUpdate]:
        """Yield the update of each row."""
        token_ids = _split(self.token_ids_T, self.rows_R4[:, 3])
        for (slot, most, start, _), tokens, origin in zip(self.rows_R4.tolist(), token_ids, self.origins, strict=True):
            yield RowUpdate(slot, most, start, tokens, origin)

    @property
    def num_new_row_bytes(self) -> int:
        """Return the size of the tokens of rows that are sent whole."""
        is_new_R = [origin is not None for origin in self.origins]
        return int(self.rows_R4[is_new_R, 3].sum()) * self.token_ids_T.itemsize


@dataclass(frozen=True)
class Distributions:
    """The distributions of N drafted tokens: a token that is not among the M candidates has probability 0."""

    ids_NM: Ints
    probs_NM: npt.NDArray[np.float32]


@dataclass(frozen=True)
class DraftReply:
    """The drafts of the R rows of a request, in its order."""

    num_tokens_R: Ints
    token_ids_N: Ints
    distributions: Distributions | None = None  # unless verification is coupled

    @classmethod
    def of(cls, drafts: Seq[Seq[int] | None], distributions: Distributions | None = None) -> DraftReply:
        """Return the reply with these drafts; None stands for a row that is not known."""
        counts = _ints([_UNKNOWN if draft is None else len(draft) for draft in drafts])
        token_ids = _ints([token_id for draft in drafts for token_id in draft or ()])
        return cls(counts, token_ids, distributions)

    def drafts(self) -> list[list[int] | None]:
        """Return the drafted tokens of each row; None for a row that must be sent whole."""
        drafts = _split(self.token_ids_N, np.maximum(self.num_tokens_R, 0))
        return [
            None if count == _UNKNOWN else draft
            for count, draft in zip(self.num_tokens_R.tolist(), drafts, strict=True)
        ]


def num_bytes(message: DraftRequest | DraftReply | Distributions | None) -> int:
    """Return the size of a message's arrays, those of its distributions included."""
    if message is None:
        return 0
    arrays = sum(value.nbytes for value in vars(message).values() if isinstance(value, np.ndarray))
    return arrays + num_bytes(getattr(message, "distributions", None))


def _ints(values: Seq[Any]) -> Ints:
    return np.array(values, dtype=np.int32)


def _split(values: Ints, lengths: Ints) -> list[list[int]]:
    return [part.tolist() for part in np.split(values, np.cumsum(lengths)[:-1])] if lengths.size else []
