"""DraftMirror: the rows of one lane of a generator as its draft actor knows them, and the draft model's cache for them.

What a generator commits is committed here by the next message, in the same slots, so that the drafter is the one of
the colocated placement, called in the same way. What a message says is checked against the row's length: a row that
does not fit is forgotten and asked for again, whole.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch

from actors.drafts.messages import Law, Missed, Newcomer, Progress, Reply, Request
from decoding.drafters.model import ModelDrafter
from decoding.engine.prefix import common_prefix
from decoding.network.language_model import LanguageModel
from decoding.sampling.batch import SamplingBatch
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.verify import Draft, Verification
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_WORTH_AWAITING = 32  # tokens that newcomers share from which on the second copies what the first has read
_NOBODY = Sequence((0,), SamplingParams(temperature=0), noise_key=0)  # stands in slots without a row; never drafts


@dataclass(frozen=True)
class DraftTerms:
    """What a lane needs of its drafter."""

    num_slots: int
    max_model_len: int
    vocab_size: int  # the target's
    eos_token_ids: frozenset[int]  # the target's
    verification: Verification
    most_candidates: int  # of a law under rejection; 0: all tokens


@dataclass
class _Row:
    sequence: Sequence
    drafted: list[int] = field(default_factory=list)  # the newest draft


class DraftMirror:
    """Drafts for the rows of one lane."""

    def __init__(self, model: LanguageModel, terms: DraftTerms) -> None:
        """`model` has a cache of its own, which is made anew."""
        self._model, self._terms = model, terms
        most = terms.most_candidates if terms.verification == "rejection" else 0
        self._drafter = ModelDrafter(model, terms.vocab_size, terms.num_slots, terms.max_model_len, most)
        self._rows: list[_Row | None] = [None] * terms.num_slots
        self._sampling: tuple[tuple[Sequence, ...], SamplingBatch] | None = None  # of which sequences
        for slot in range(terms.num_slots):
            self._drafter.begin(slot, None, 0)

    @torch.inference_mode()
    def draft(self, request: Request, newcomers: Seq[Newcomer]) -> Reply:
        """Take in what the generator committed, and draft for the rows of the request.

        Raises ValueError for what makes no sense.
        """
        told: list[Progress | Missed | Newcomer] = [*request.progress, *request.missed, *newcomers]
        slots = [slot for swap in request.swaps for slot in swap] + [row.slot for row in told]
        if max(slots, default=0) >= self._terms.num_slots:
            raise ValueError(f"a row stands in slot {max(slots)}, and there are {self._terms.num_slots}")
        for first, second in request.swaps:
            self._rows[first], self._rows[second] = self._rows[second], self._rows[first]
            self._drafter.swap(first, second)
        for progress in request.progress:
            self._advance(progress)
        for missed in request.missed:
            self._make_up(missed)
        self._take_in(newcomers)
        limits = {row.slot: row.limit for row in told if self._rows[row.slot] is not None}
        law = self._propose(limits) if any(limits.values()) else None
        drafts = tuple(None if (known := self._rows[row.slot]) is None else tuple(known.drafted) for row in told)
        return Reply(drafts, law if any(drafts) else None)

    def release(self) -> None:
        """Give the cache's memory back."""
        self._model.release()

    def _advance(self, told: Progress) -> None:
        row = self._rows[told.slot]
        if row is None:
            return
        num_tokens = len(row.sequence) + told.num_accepted + 1
        if told.num_accepted > len(row.drafted) or num_tokens & 0xFF != told.length_byte:
            self._rows[told.slot] = None
            return
        row.sequence.output_token_ids += [*row.drafted[: told.num_accepted], told.next_token]
        row.drafted = []

    def _make_up(self, told: Missed) -> None:
        row = self._rows[told.slot]
        if row is None:
            return
        if len(row.sequence) != told.start:
            self._rows[told.slot] = None
            return
        self._drafter.roll_back(told.slot, told.start + common_prefix(list(told.token_ids), row.drafted))
        row.sequence.output_token_ids += told.token_ids
        row.drafted = []

    def _take_in(self, newcomers: Seq[Newcomer]) -> None:
        """Read the newcomers' tokens; of those that begin alike the first is read, the others copy from it."""
        first: list[tuple[int, Sequence]] = []
        later: list[tuple[int, Sequence]] = []
        before = {told.slot: self._rows[told.slot] for told in newcomers}
        for told in newcomers:
            self._rows[told.slot] = None  # until it begins, what stands there is not its own
            sequence = Sequence(tuple(told.prompt_ids.tolist()), told.params, told.noise_key)
            sequence.output_token_ids += told.output_ids.tolist()
            tokens = sequence.token_ids[:-1]
            shared = max((common_prefix(tokens, other.token_ids) for _, other in first), default=0)
            (first if shared < _WORTH_AWAITING else later).append((told.slot, sequence))
        for part in (first, later):
            for slot, sequence in part:
                self._drafter.begin(slot, *self._donor(slot, sequence.token_ids, before[slot]))
                self._rows[slot] = _Row(sequence)
            self._read([slot for slot, _ in part])

    def _read(self, slots: Seq[int]) -> None:
        rows = [(slot, row.sequence) for slot in slots if (row := self._rows[slot]) is not None]
        if rows:
            self._drafter.admit([slot for slot, _ in rows], [sequence for _, sequence in rows])

    def _donor(self, slot: int, tokens: list[int], before: _Row | None) -> tuple[int | None, int]:
        """The slot where most of these tokens but the newest stand, and how many; `before` stood in `slot` itself."""
        best, most = None, 0
        for other, row in enumerate(self._rows):
            row = before if other == slot else row
            if row is not None:
                common = min(common_prefix(tokens, row.sequence.token_ids), len(tokens) - 1, len(row.sequence) - 1)
                if common > most:
                    best, most = other, common
        return best, most

    def _propose(self, limits: dict[int, int]) -> Law | None:
        """Draft so many tokens in these slots; under rejection the laws, in the order of `limits`."""
        sequences = tuple(row.sequence if row else _NOBODY for row in self._rows[: max(limits) + 1])
        if self._sampling is None or self._sampling[0] != sequences:
            self._sampling = sequences, sampling_batch(sequences, self._terms.eos_token_ids, self._model.device)
        lengths = tuple(limits.get(slot, 0) for slot in range(len(sequences)))
        draft = self._drafter.propose(Rows(sequences, self._sampling[1], lengths, self._terms.verification))
        counts, tokens = draft.num_draft_tokens_B.tolist(), draft.token_ids_BK.tolist()
        for slot in limits:
            row = self._rows[slot]
            assert row is not None
            row.drafted = tokens[slot][: counts[slot]]
        return self._law(draft, [(slot, counts[slot]) for slot in limits])

    def _law(self, draft: Draft, counts: list[tuple[int, int]]) -> Law | None:
        if draft.probs_BKV is None:
            return None
        probs_NV = torch.cat([draft.probs_BKV[slot, :count] for slot, count in counts])
        probs_NM, ids_NM = probs_NV.topk(min(self._terms.most_candidates or probs_NV.shape[1], probs_NV.shape[1]))
        return Law(ids_NM.cpu().numpy().astype(np.int64), probs_NM.float().cpu().numpy())
