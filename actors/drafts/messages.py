"""Draft messages: what a generator and a draft actor send each other in a round, as plain tuples and lists.

A request says which tokens each row has committed since the last one, and how many to draft. A row is known by its
slot, and checked by its length: its new tokens begin at `start`, and a draft actor that knows another length asks for
the whole row. The reply holds the drafted tokens and, unless coupled, the distribution that each was drawn from. The
sizes of messages are those of their numbers, of 4 bytes each.

Shapes: N drafted tokens of all rows, M candidates of a distribution.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope

_BYTES = 4  # of a number


@dataclass(frozen=True)
class RowOrigin:
    """What a draft actor needs of a row that it does not know, beside the row's tokens."""

    num_prompt_tokens: int
    params: SamplingParams
    noise_key: int
    scope: Scope = ONE_FOR_ALL


class RowUpdate(NamedTuple):
    """The tokens that a row has committed since the last request; all its tokens if it has an origin."""

    slot: int  # after the swaps of the request
    max_draft_tokens: int
    start: int  # the row's length before these tokens
    token_ids: Seq[int]
    origin: RowOrigin | None = None


class DraftRequest(NamedTuple):
    """The updates of rows. Swaps of slots come first."""

    swaps: Seq[tuple[int, int]]
    updates: Seq[RowUpdate]

    @property
    def num_bytes(self) -> int:
        """The size of its numbers."""
        return _BYTES * (2 * len(self.swaps) + sum(4 + len(update.token_ids) for update in self.updates))

    @property
    def num_new_row_bytes(self) -> int:
        """The size of the tokens of rows that are sent whole."""
        return _BYTES * sum(len(update.token_ids) for update in self.updates if update.origin is not None)


class Distributions(NamedTuple):
    """The distributions of N drafted tokens: a token that is not among the M candidates has probability 0."""

    ids_NM: npt.NDArray[np.int32]
    probs_NM: npt.NDArray[np.float32]


class DraftReply(NamedTuple):
    """The drafts of the rows of a request, in its order; None for a row that is not known, and must be sent whole."""

    drafts: Seq[list[int] | None]
    distributions: Distributions | None = None  # unless verification is coupled

    @property
    def num_bytes(self) -> int:
        """The size of its numbers, those of its distributions included."""
        return _BYTES * sum(1 + len(draft or ()) for draft in self.drafts) + self.num_distribution_bytes

    @property
    def num_distribution_bytes(self) -> int:
        """The size of its distributions."""
        return sum(array.nbytes for array in self.distributions or ())
