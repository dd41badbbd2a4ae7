"""ModelDrafter: a small language model that drafts token by token, under the target's own sampling parameters.

Its first step reads every committed token that its cache lacks: the newest one, and after full acceptance also the last
drafted one, which it never read. The same forward fills that hole without a branch. A row that was left out for some
rounds lacks more tokens; a row that lacks many reads most of them in a forward of its own first.

Shapes: N rows of a step, T tokens of the first step, J positions, V vocabulary of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.cache.kv_cache import KVCache
from decoding.device import to_device
from decoding.drafters.idle_rounds import IdleRounds
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.fused.live_weights import LiveWeights
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence

_MAX_IN_A_STEP = 32  # tokens that a row may lack and still read in the first step, beside the other rows
_CHUNK = 512  # missed tokens of a row to read in one forward: bounds its memory


class ModelDrafter(StepwiseDrafter):
    """Drafts with a model of its own, in a slot cache that mirrors the target's."""

    def __init__(
        self, model: LanguageModel, vocab_size: int, num_slots: int, max_model_len: int, most_candidates: int = 0
    ) -> None:
        """Allocate a cache. `vocab_size` is the target's; no other ids are proposed. Ids the draft lacks are read as 0.

        `most_candidates` as in `StepwiseDrafter`.
        """
        max_len = min(max_model_len, model.max_positions or max_model_len)
        super().__init__(num_slots, max_len, model.device, most_candidates)
        self.model = model
        self._vocab_size = vocab_size
        self._num_ingested: dict[int, int] = {}  # per slot, positions whose keys and values are known to be right
        self.idle_rounds = IdleRounds()
        model.allocate(num_slots, max_model_len)

    @property
    def _cache(self) -> KVCache:
        assert self.model.cache is not None
        return self.model.cache

    @property
    def weights(self) -> LiveWeights:
        return self.model.weights

    def renew(self) -> None:
        """Forget all keys and values: each row is read again before it drafts."""
        self._num_ingested = dict.fromkeys(self._num_ingested, 0)
        self.idle_rounds.begin()

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Copy the donor's prefix as far as it is cached and finite; `prefill` computes the rest."""
        self._renew_slot(slot)
        num_copied = 0
        if donor is not None:
            num_copied = self._copy_slot(slot, donor, min(num_shared, self.num_ingested(donor)))
        self._num_ingested[slot] = num_copied

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        """Read what the slots lack of these tokens, unless drafts are rare now: then the next draft reads them."""
        if self.idle_rounds.are_many:
            return
        known = [self._known(prompt[: self._max_len]) for prompt in prompts]
        starts = [self._num_ingested.get(slot, 0) for slot in slots]
        missing = [prompt[start:] for prompt, start in zip(known, starts, strict=True)]
        self.model.prefill(slots, missing, starts)
        for slot, prompt in zip(slots, known, strict=True):
            self._num_ingested[slot] = max(len(prompt), self._num_ingested.get(slot, 0))

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Read all but the newest token of each sequence, unless `prefill` has done so."""
        for slot in slots:
            self._num_ingested.setdefault(slot, 0)
        self.prefill(slots, [sequence.token_ids[:-1] for sequence in sequences])

    def _begin_round(self, rows: Rows, limits: Seq[int]) -> None:
        for slot, sequence in enumerate(rows.sequences):
            # From the newest token on the cache holds the draft's own guess. This must be forgotten in a round without
            # a draft, too: the next round would take the guess for the committed token.
            self._num_ingested[slot] = min(self._num_ingested[slot], len(sequence) - 1)
        self.idle_rounds.count(sum(limit > 0 for limit in limits), len(limits))

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        return self._read(part, slots, drafting)

    def _next_logits(
        self, step: int, part: Rows, slots: list[int], drafting: set[int], newest_N: torch.Tensor
    ) -> torch.Tensor:
        starts = [len(sequence) + step - 1 for sequence in part.sequences]
        logits_N1V = self._step(starts, newest_N, slots)
        for slot, start in zip(slots, starts, strict=True):
            if slot in drafting:  # their earlier drafts; rejected guesses are beyond the newest token
                self._num_ingested[slot] = min(start + 1, self._max_len)
        return logits_N1V

    def num_ingested(self, slot: int) -> int:
        """Return how many positions of a slot have keys and values that are known to be right."""
        return self._num_ingested.get(slot, 0)

    def ingested(self, slot: int, num_positions: int) -> None:
        """Record that the first positions of a slot have been read."""
        self._num_ingested[slot] = num_positions

    def catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of these slots and rows."""
        known = [self._known(sequence.token_ids[:-1]) for _, sequence in rows]
        starts = [self.num_ingested(slot) for slot, _ in rows]
        slots = [slot for slot, _ in rows]
        self.model.prefill(slots, [row[start:] for row, start in zip(known, starts, strict=True)], starts)
        for slot, row in zip(slots, known, strict=True):
            self._num_ingested[slot] = max(len(row), self.num_ingested(slot))

    def roll_back(self, slot: int, length: int) -> None:
        """Forget the slot from position `length` on: rejected guesses of a row that wrote without drafting."""
        self._num_ingested[slot] = min(self._num_ingested.get(slot, 0), length)

    def rest(self) -> None:
        """Read no prompt before a row drafts."""
        self.idle_rounds.rest()

    def swap(self, first: int, second: int) -> None:
        lengths = self.num_ingested(first), self.num_ingested(second)
        self._swap_slots(first, second, *lengths)
        self._num_ingested[second], self._num_ingested[first] = lengths

    def reset(self, slot: int) -> None:
        """Clear the slot's keys and values: a NaN in a masked position would spoil all later logits (0 * NaN)."""
        self._cache.zero(slot)
        self._num_ingested[slot] = 0
        self.is_finite_S[slot] = True

    def _read(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        """Return logits [N, 1, V] after the newest token of the rows that draft, from one forward over what they lack.

        The other rows of the step read as much of what they lack as fits beside them; their logits have no meaning.
        """
        self._catch_up([(slot, row) for slot, row in zip(slots, part.sequences, strict=True) if slot in drafting])
        ends = [min(len(sequence), self._max_len) for sequence in part.sequences]
        missing = [end - self._num_ingested[slot] for slot, end in zip(slots, ends, strict=True)]
        width = max(number for number, slot in zip(missing, slots, strict=True) if slot in drafting)
        # Up to a width of two, all rows read equally many tokens, some again: a rectangle is cheaper than packing.
        counts = [width if width <= 2 else min(max(number, 1), width) for number in missing]
        starts = [
            max(min(self._num_ingested[slot], end - count), 0)
            for slot, end, count in zip(slots, ends, counts, strict=True)
        ]
        reading = [
            self._known(sequence.token_ids[start : min(start + count, end)])
            for sequence, start, count, end in zip(part.sequences, starts, counts, ends, strict=True)
        ]
        for slot, start, chunk in zip(slots, starts, reading, strict=True):
            self._num_ingested[slot] = start + len(chunk)
        return self._forward(slots, starts, reading, width)

    def _catch_up(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Read all but the newest token of the slots that lack too many for one step; the memory is bounded."""
        while True:
            behind = [
                (slot, self._num_ingested[slot], sequence)
                for slot, sequence in rows
                if len(sequence) - self._num_ingested[slot] > _MAX_IN_A_STEP
            ]
            if not behind:
                return
            slots, starts = [slot for slot, _, _ in behind], [start for _, start, _ in behind]
            chunks = [self._known(row.token_ids[start : min(start + _CHUNK, len(row) - 1)]) for _, start, row in behind]
            self._forward(slots, starts, chunks, max(map(len, chunks)))
            for slot, start, chunk in zip(slots, starts, chunks, strict=True):
                self._num_ingested[slot] = start + len(chunk)

    def _forward(self, slots: list[int], starts: list[int], tokens: list[list[int]], width: int) -> torch.Tensor:
        """Return logits [N, 1, V] after the last of each row's tokens."""
        device = self.model.device
        tokens_NT = to_device([row + [0] * (width - len(row)) for row in tokens], device)
        last_N1 = to_device([[len(row) - 1] for row in tokens], device)
        lengths = None if width <= 2 else [len(row) for row in tokens]
        return self.of_target_ids(self.model.forward(starts, tokens_NT, last_N1, slots=slots, lengths=lengths))

    def _step(self, starts: list[int], newest_N: torch.Tensor, slots: list[int]) -> torch.Tensor:
        tokens_N1 = self.known(newest_N)[:, None]
        every_N1 = torch.zeros_like(tokens_N1)
        return self.of_target_ids(self.model.forward(starts, tokens_N1, every_N1, slots=slots))

    def of_target_ids(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Fit logits to the target's vocabulary: ids it lacks are dropped, ids the draft lacks cannot be drawn."""
        num_missing = self._vocab_size - logits_BJV.shape[-1]
        if num_missing > 0:
            return torch.nn.functional.pad(logits_BJV, (0, num_missing), value=float("-inf"))
        return logits_BJV[..., : self._vocab_size]

    def known(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Replace the tokens that the draft does not know by 0."""
        return torch.where(token_ids < self.model.vocab_size, token_ids, 0)

    def _known(self, token_ids: Seq[int]) -> list[int]:
        """Replace the tokens that the draft does not know by 0."""
        return [token_id if token_id < self.model.vocab_size else 0 for token_id in token_ids]
