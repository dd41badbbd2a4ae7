"""AssistantDrafter: drafts with an assistant of Gemma 4, which reads keys and values in its target's own slots.

Of a row it needs one number more: the target's state behind the token before the newest one. Each forward of the target
hands out those of its tokens, and the last ones of a slot are held until the next. So a row drafts in any round behind
a forward of the target, whatever it missed before; only a row of one token has none.

Shapes: N tokens or rows of a step, S slots, V vocabulary, E hidden size of the target.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.cache.features import FeatureTap
from decoding.device import to_device
from decoding.drafters.base import swap_entries
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.heads.assistant_head import AssistantHead, Sight
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows

_MOST_HELD = 65  # states of a slot: as many as a round can verify, and of a prompt the last ones


class AssistantDrafter(StepwiseDrafter):
    """Drafts token by token, without a cache of its own."""

    def __init__(self, head: AssistantHead, target: LanguageModel, num_slots: int, max_model_len: int) -> None:
        """Draft for the rows in the slots of `target`, which must hand its states to `tap`."""
        super().__init__(head, num_slots, min(max_model_len, head.max_positions))
        self.head, self._target = head, target
        self._held: dict[int, tuple[int, torch.Tensor]] = {}  # by slot: a first position, and states [N, E] from it on
        self._round: tuple[list[int], torch.Tensor, Sight] | None = None  # the last step's slots, and what it left

    @property
    def tap(self) -> FeatureTap:
        return self.head.tap(self.receive)

    def receive(
        self,
        slots: Seq[int],
        starts: Seq[int],
        lengths: Seq[int],
        tokens_N: torch.Tensor,
        features_NH: torch.Tensor,
    ) -> None:
        """Hold the last states of each row, as `FeatureTap.receive` says, in place of earlier ones."""
        first = 0
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            states_NE = features_NH[first : first + length]
            if length > _MOST_HELD:  # a copy, or all states of a prompt would be held with them
                start, states_NE = start + length - _MOST_HELD, states_NE[-_MOST_HELD:].clone()
            self._held[slot] = start, states_NE
            first += length

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Forget the slot's earlier row. There is nothing to copy: the last shared token is read again."""
        self.reset(slot)

    def swap(self, first: int, second: int) -> None:
        """Exchange what is held; keys and values are the target's."""
        swap_entries(self._held, first, second)
        is_finite_S = self.slots.is_finite_S
        is_finite_S[[first, second]] = is_finite_S[[second, first]]

    def reset(self, slot: int) -> None:
        """Forget what is held."""
        self._held.pop(slot, None)
        self.slots.is_finite_S[slot] = True

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft; one whose last state is not held drafts none."""
        self._round = None
        limits = super()._limits(rows)
        for slot, sequence in enumerate(rows.sequences):
            start, states_NE = self._held.get(slot, (0, ()))
            if not start <= len(sequence) - 2 < start + len(states_NE):
                limits[slot] = 0
        return limits

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        states = []
        for slot, row in zip(slots, part.sequences, strict=True):
            start, states_NE = self._held.get(slot, (0, None))
            if slot in drafting and states_NE is not None:
                states.append(states_NE[len(row) - 2 - start])
            else:
                states.append(torch.zeros(self.head.hidden_size, dtype=self.head.dtype, device=self.head.device))
        newest_N = to_device([row.token_ids[-1] for row in part.sequences], self.head.device)
        self._lengths = {slot: len(row) for slot, row in zip(slots, part.sequences, strict=True)}
        return self._logits(slots, newest_N, torch.stack(states), self._sight(slots))

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        assert self._round is not None
        before, states_NE, sight = self._round
        if before != slots:
            # A row that does not draft may stand between those of this step and not of the last one: its state is zero.
            lines = {slot: line for line, slot in enumerate(before)}
            states_NE = torch.nn.functional.pad(states_NE, (0, 0, 0, 1))
            states_NE = states_NE[to_device([lines.get(slot, len(before)) for slot in slots], self.head.device)]
            sight = self._sight(slots)
        return self._logits(slots, newest_N, states_NE, sight)

    def _sight(self, slots: list[int]) -> Sight:
        assert self._target.cache is not None, "the target's slots are allocated"
        return Sight(self.head, self._target.cache, slots, [max(1, self._lengths.get(slot, 0) - 1) for slot in slots])

    def _logits(
        self, slots: list[int], newest_N: torch.Tensor, states_NE: torch.Tensor, sight: Sight
    ) -> torch.Tensor:
        logits_N1V, states_NE = self.head.step(newest_N, states_NE, sight)
        self._round = slots, states_NE, sight
        return logits_N1V
