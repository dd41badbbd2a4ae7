"""HeadDrafter: what drafters with a head have in common. They read the target's features into a slot cache."""

from abc import abstractmethod
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

import torch

from decoding.cache.features import FeatureTap
from decoding.drafters.stepwise import StepwiseDrafter
from decoding.fused.live_weights import LiveWeights
from decoding.heads.slot_head import SlotHead

_Head = TypeVar("_Head", bound=SlotHead)


class HeadDrafter(StepwiseDrafter, Generic[_Head]):
    """Drafts with a head, in a slot cache that mirrors the target's."""

    def __init__(self, head: _Head, num_slots: int, max_model_len: int) -> None:
        """Allocate the head's cache. The target must hand its features to `tap`."""
        super().__init__(head, num_slots, min(max_model_len, head.max_positions or max_model_len))
        self.head = head
        head.allocate(num_slots, max_model_len)

    @property
    def tap(self) -> FeatureTap:
        """What the target must hand out."""
        return FeatureTap(self.head.layer_ids, self.head.project, self.receive)

    @property
    def weights(self) -> LiveWeights:
        return self.head.weights

    @abstractmethod
    def receive(
        self,
        slots: Seq[int],
        starts: Seq[int],
        lengths: Seq[int],
        tokens_N: torch.Tensor,
        features_NH: torch.Tensor,
    ) -> None:
        """Take the features of a forward, as `FeatureTap.receive` says."""
