"""DraftMirror: the rows of a lane of a generator as its draft actor knows them, and the messages about them.

Messages are plain tuples and lists. A request says which tokens each row has committed since the last one, and how many
to draft. A row is known by its slot, and checked by its length: its new tokens begin at `start`, and a draft actor that
knows another length asks for the whole row. The reply holds the drafted tokens and, unless coupled, the distribution
that each was drawn from. The sizes of messages are those of their numbers, of 4 bytes each.

The next request commits here what the generator has committed, in the same slots, so the drafter is the one of the
colocated placement and is called in the same way.

Shapes: N drafted tokens of all rows, M candidates of a distribution.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from decoding.choices import Verification
from decoding.common_prefix import common_prefix
from decoding.drafters.model import ModelDrafter
from decoding.grammar.grammars import Grammars
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import SamplingBatch
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import RULES
from decoding.sampling.token_history import TokenCounts
from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope
from decoding.sequence import Sequence

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
    seconds: float = 0.0  # that it took to make

    @property
    def num_bytes(self) -> int:
        """The size of its numbers, those of its distributions included."""
        return _BYTES * sum(1 + len(draft or ()) for draft in self.drafts) + self.num_distribution_bytes

    @property
    def num_distribution_bytes(self) -> int:
        """The size of its distributions."""
        return sum(array.nbytes for array in self.distributions or ())


_MIN_SHARED = 32  # tokens of a common prefix from which on a new row copies what another new row has read
_NO_ROW = Sequence((0,), SamplingParams(temperature=0), noise_key=0)  # fills the slots without a row; never drafts


@dataclass(frozen=True)
class DraftTerms:
    """The properties of a lane that its drafter depends on."""

    num_slots: int
    max_model_len: int
    vocab_size: int  # the target's
    eos_token_ids: frozenset[int]  # the target's
    verification: Verification
    most_candidates: int  # of a distribution, unless coupled; 0: all tokens
    num_draft_tokens: int = 0  # of a row, at most


@dataclass
class _Row:
    sequence: Sequence
    drafted: list[int] = field(default_factory=list)  # the newest draft


class DraftMirror:
    """The drafter of one lane's rows."""

    def __init__(self, model: LanguageModel, terms: DraftTerms, grammars: Grammars | None = None) -> None:
        """Make a drafter over `model`, whose cache must not be shared and is allocated anew.

        `grammars` are those of the target's tokenizer; without them no row may have one.
        """
        self._model, self._terms, self._grammars = model, terms, grammars
        self._rule = RULES[terms.verification]
        sizes = terms.vocab_size, terms.num_slots, terms.max_model_len
        self._drafter = ModelDrafter(model, *sizes, terms.most_candidates, terms.num_draft_tokens)
        self._rows: list[_Row | None] = [None] * terms.num_slots
        self._sampling: tuple[tuple[Sequence, ...], SamplingBatch] | None = None  # the newest, with its sequences
        self._token_counts = TokenCounts(terms.num_slots, model.device)
        for slot in range(terms.num_slots):
            self._drafter.begin(slot, None, 0)

    @torch.inference_mode()
    def draft(self, request: DraftRequest) -> DraftReply:
        """Commit what the generator committed, draft for the rows of the request, and return the drafts.

        Raises ValueError for a slot that the lane does not have.
        """
        updates = request.updates
        last = max([*chain.from_iterable(request.swaps), *(update.slot for update in updates)], default=0)
        if last >= self._terms.num_slots:
            raise ValueError(f"a row stands in slot {last}, and there are {self._terms.num_slots}")
        for first, second in request.swaps:
            self._rows[first], self._rows[second] = self._rows[second], self._rows[first]
            self._drafter.swap(first, second)
        for update in updates:
            if update.origin is None:
                self._extend(update)
        self._begin([(update.slot, self._sequence(update)) for update in updates if update.origin is not None])
        limits = {row.slot: row.max_draft_tokens for row in updates if self._rows[row.slot] is not None}
        distributions = self._propose(limits) if any(limits.values()) else None
        rows = [self._rows[update.slot] for update in updates]
        drafts = [None if row is None else row.drafted for row in rows]
        return DraftReply(drafts, distributions if any(drafts) else None)

    def renew(self) -> None:
        """Let each row be read again before it drafts: the model's weights have been replaced."""
        self._drafter.renew()

    def release(self) -> None:
        """Free the memory of the cache."""
        self._model.release()

    def _extend(self, update: RowUpdate) -> None:
        """Append the new tokens to a known row. A row of another length is forgotten."""
        row = self._rows[update.slot]
        if row is None or len(row.sequence) != update.start:
            self._rows[update.slot] = None
            return
        # The drafter's cache holds its own draft from here on; the part that was accepted is right.
        self._drafter.slots.roll_back(update.slot, update.start + common_prefix(update.token_ids, row.drafted))
        row.sequence.output_token_ids += update.token_ids
        row.drafted = []

    def _sequence(self, update: RowUpdate) -> Sequence:
        assert update.origin is not None
        origin = update.origin
        prompt = tuple(update.token_ids[: origin.num_prompt_tokens])
        sequence = Sequence(prompt, origin.params, origin.noise_key, scope=origin.scope)
        sequence.output_token_ids += update.token_ids[origin.num_prompt_tokens :]
        if origin.params.structured is not None and self._grammars is not None:
            sequence.matcher = self._grammars.matcher(origin.params.structured)
        return sequence

    def _begin(self, new_rows: Seq[tuple[int, Sequence]]) -> None:
        """Read new rows; of a scope's rows with a common prefix the first is read, and the others copy from it."""
        before = {slot: self._rows[slot] for slot, _ in new_rows}
        for slot in before:
            self._rows[slot] = None  # the slot still holds another row's keys and values
        first: list[tuple[int, Sequence]] = []
        later: list[tuple[int, Sequence]] = []
        for slot, sequence in new_rows:
            shared = max((_num_shared(sequence, other) for _, other in first), default=0)
            (first if shared < _MIN_SHARED else later).append((slot, sequence))
        for part in (first, later):
            for slot, sequence in part:
                self._drafter.begin(slot, *self._donor(slot, sequence, before[slot]))
                self._rows[slot] = _Row(sequence)
            if part:
                self._drafter.admit([slot for slot, _ in part], [sequence for _, sequence in part])

    def _donor(self, slot: int, sequence: Sequence, before: _Row | None) -> tuple[int | None, int]:
        """Return the slot that holds the longest prefix that a sequence may copy, and the prefix's length.

        `before` is the row that held `slot` itself until now.
        """
        rows = [*self._rows[:slot], before, *self._rows[slot + 1 :]]
        lengths = [
            0 if row is None else min(_num_shared(sequence, row.sequence), len(row.sequence) - 1) for row in rows
        ]
        most = max(lengths)
        return (lengths.index(most), most) if most else (None, 0)

    def _propose(self, limits: dict[int, int]) -> Distributions | None:
        """Propose at most `limits[slot]` tokens in each slot. Return their distributions in that order, if any."""
        sequences = tuple(row.sequence if row else _NO_ROW for row in self._rows[: max(limits) + 1])
        if self._sampling is None or self._sampling[0] != sequences:
            self._sampling = sequences, sampling_batch(sequences, self._terms.eos_token_ids, self._model.device)
        lengths = tuple(limits.get(slot, 0) for slot in range(len(sequences)))
        rows = Rows(sequences, self._sampling[1], lengths, self._rule, token_counts=self._token_counts)
        draft = self._drafter.propose(rows)
        counts, tokens = draft.num_draft_tokens_B.tolist(), draft.token_ids_BK.tolist()
        for slot in limits:
            row = self._rows[slot]
            assert row is not None
            row.drafted = tokens[slot][: counts[slot]]
        if draft.probs_BKV is None:
            return None
        probs_NV = torch.cat([draft.probs_BKV[slot, : counts[slot]] for slot in limits])
        probs_NM, ids_NM = probs_NV.topk(min(self._terms.most_candidates or probs_NV.shape[1], probs_NV.shape[1]))
        return Distributions(ids_NM.cpu().numpy().astype(np.int32), probs_NM.float().cpu().numpy())


def _num_shared(sequence: Sequence, other: Sequence) -> int:
    """Return how many first tokens without its newest a sequence has in common with one of its scope."""
    if sequence.scope.prefixes != other.scope.prefixes:
        return 0
    return min(common_prefix(sequence.token_ids, other.token_ids), len(sequence) - 1)
