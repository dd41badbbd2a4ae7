"""TappedStep: a step whose tokens' features are handed out with its answer.

The streams come from the stages as they are, side by side in the order of the layers; they are projected here.

Shapes: N tokens, A layers, E the target's hidden size, H features of a projected token.
"""

from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any, Generic, TypeVar

import torch

from actors.stages.actor import unpacked
from actors.stages.pipeline import Step
from actors.stages.work import Work
from decoding.cache.features import FeatureTap
from decoding.device import to_device

_T = TypeVar("_T")


class TappedStep(Generic[_T]):
    """A step under way, and the drafter that reads the features of its tokens."""

    def __init__(
        self, step: Step[_T], tap: FeatureTap, work: Work, token_ids: Seq[Seq[int]], device: torch.device
    ) -> None:
        """Take a step over the tokens of this work, whose features `tap` gets on this device."""
        self._step, self._tap, self._work, self._device = step, tap, work, device
        self._token_ids = list(chain.from_iterable(token_ids))
        self._is_handed_out = False

    @property
    def is_ready(self) -> bool:
        """Whether `result` waits for no other process."""
        return self._step.is_ready

    @torch.inference_mode()
    def result(self) -> _T:
        """Return the step's answer, as `Step.result`; the features are handed out before, once."""
        answer = self._step.result()
        if not self._is_handed_out:
            self._is_handed_out = True
            work, features_NH = self._work, self.features()
            tokens_N = to_device(self._token_ids, self._device)
            self._tap.receive(list(work.slots), list(work.starts), list(work.lengths), tokens_N, features_NH)
        return answer

    @torch.inference_mode()
    def features(self) -> torch.Tensor:
        """Return the features [N, H] of all tokens, once: the streams are dropped. The step must have its answer."""
        streams: Any = self._step.streams
        self._step.streams = None
        layer_ids = self._work.layer_ids
        streams_NAE = unpacked(streams).view(len(self._token_ids), len(layer_ids), -1)
        in_order = [layer_ids.index(layer_id) for layer_id in self._tap.layer_ids]
        return self._tap.project(streams_NAE[:, in_order].flatten(1).to(self._device))
