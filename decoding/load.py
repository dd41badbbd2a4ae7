"""From paths to the parts of an engine: models loaded, checked against each other and probed."""

import logging
from dataclasses import dataclass

from decoding.device import Device
from decoding.drafters import NEED_A_MODEL, Drafter, DrafterName, make_drafter
from decoding.model import DType, LanguageModel
from decoding.options import EngineOptions
from decoding.probe import check_model
from decoding.target import Target
from decoding.vocabulary import check_same_vocabulary

_DEFAULT_MAX_MODEL_LEN = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What an engine is made of."""

    target: Target
    draft: LanguageModel | None
    drafter_name: DrafterName
    max_model_len: int
    num_lanes: int = 1

    def target_of(self, lane: int) -> Target:
        """The target with a cache of this lane's own."""
        return self.target if lane == 0 else self.target.share()

    def make_drafter(self, lane: int, num_slots: int) -> Drafter:
        """A fresh drafter for so many rows of this lane."""
        draft = self.draft if self.draft is None or lane == 0 else self.draft.share()
        return make_drafter(self.drafter_name, draft, self.target.vocab_size, num_slots, self.max_model_len)


def load_parts(
    target: str,
    draft: str | None,
    options: EngineOptions,
    device: Device,
    dtype: DType,
    target_model: Target | None = None,
    num_lanes: int = 1,
) -> Parts:
    """The parts over the models at these paths; a ValueError, before anything is generated, if they cannot work.

    `target_model` is the one at `target`, where it is loaded and checked already.
    """
    drafter_name = options.pick_drafter(draft)
    if target_model is None:
        target_model = LanguageModel.load(target, device, dtype)
        check_model(target_model, target)
    if target_model.is_batch_invariant:
        _log.info("our kernels run %r: its logits are the same, bit for bit, in any batch", target)
    draft_model = None
    if drafter_name in NEED_A_MODEL and draft is not None:
        draft_model = LanguageModel.load(draft, device, dtype)
        check_same_vocabulary(target, draft, target_model.vocab_size, draft_model.vocab_size)
        check_model(draft_model, draft)
    max_model_len = _max_model_len(options.max_model_len, target_model.max_positions)
    return Parts(target_model, draft_model, drafter_name, max_model_len, num_lanes)


def _max_model_len(wanted: int | None, max_positions: int | None) -> int:
    if wanted is None:
        return min(max_positions or _DEFAULT_MAX_MODEL_LEN, _DEFAULT_MAX_MODEL_LEN)
    if max_positions is not None and wanted > max_positions:
        raise ValueError(
            f"engine.max_model_len is {wanted}, but the target sees at most {max_positions} positions; lower it"
        )
    return wanted
