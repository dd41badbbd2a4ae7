"""AssistantDrafter: drafts with an assistant of Gemma 4, which reads keys and values in its target's own slots.

Of a row it needs one thing more: the target's state behind the token before the newest one. Each forward of the target
hands out those of its tokens, and the last ones of a slot are held until the next. So a row drafts in any round behind
a forward of the target, whatever it missed before.

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


class AssistantDrafter(StepwiseDrafter):
    """Drafts token by token, without a cache of its own."""

    def __init__(self, head: AssistantHead, target: LanguageModel, num_slots: int, max_model_len: int) -> None:
        """Draft for the rows in the slots of `target`, which must hand its states to `tap`."""
        # Of a draft without a cache only the device and the weights are asked for.
        super().__init__(head, num_slots, min(max_model_len, head.max_positions))  # type: ignore[arg-type]
        self.head, self._target = head, target
        self._held: dict[int, tuple[int, torch.Tensor]] = {}  # by slot: a first position, and states [N, E] from it on
        self._states_SE = torch.zeros(num_slots, head.hidden_size, dtype=head.dtype, device=head.device)  # of this step
        self._sight: Sight | None = None  # of this round's rows
        self._lengths: list[int] = []

    @property
    def tap(self) -> FeatureTap:
        return self.head.tap(self.receive)

    def receive(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], _: object, states_NE: torch.Tensor) -> None:
        """Hold the states of each row's last forward, as `FeatureTap.receive` says."""
        for slot, start, own_NE in zip(slots, starts, torch.split(states_NE, list(lengths)), strict=True):
            self._held[slot] = start, own_NE

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Forget the slot's earlier row. There is nothing to copy: the last shared token is read again."""
        self.reset(slot)

    def swap(self, first: int, second: int) -> None:
        """Exchange what is held; keys and values are the target's."""
        swap_entries(self._held, first, second)
        self.slots.is_finite_S[[first, second]] = self.slots.is_finite_S[[second, first]]

    def reset(self, slot: int) -> None:
        """Forget what is held."""
        self._held.pop(slot, None)
        self._states_SE[slot] = 0.0  # which a row computes with that stands between others and does not draft
        self.slots.is_finite_S[slot] = True

    def _limits(self, rows: Rows) -> list[int]:
        """Return how many tokens each row may draft; one whose last state is not held drafts none."""
        limits, self._lengths, self._sight = super()._limits(rows), [len(row) for row in rows.sequences], None
        for slot, length in enumerate(self._lengths):
            start, own_NE = self._held.get(slot, (0, ()))
            if not start <= length - 2 < start + len(own_NE):
                limits[slot] = 0
        return limits

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        for slot in drafting:
            start, own_NE = self._held[slot]
            self._states_SE[slot] = own_NE[self._lengths[slot] - 2 - start]
        newest_N = to_device([row.newest_token for row in part.sequences], self.head.device)
        return self._next_logits(0, slots, drafting, newest_N)

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        if self._sight is None or self._sight.slots != slots:
            assert self._target.cache is not None, "the target's slots are allocated"
            nums_seen = [max(1, self._lengths[slot] - 1) for slot in slots]
            self._sight = Sight(self._target.cache, slots, nums_seen, self.head.device)
        index_N = to_device(slots, self.head.device)
        logits_N1V, self._states_SE[index_N] = self.head.step(newest_N, self._states_SE[index_N], self._sight)
        return logits_N1V
