"""Makes a lane, and lets its rounds overlap where our GPU kernels run target and draft."""

import os
from collections import deque
from typing import Any

from decoding.drafters import Drafter
from decoding.drafters.base import NoDrafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.lane import Lane
from decoding.engine.round import Starter
from decoding.fused.recordings import cuda_recorder
from decoding.gpu.available import kernels_run_on
from decoding.network.language_model import LanguageModel
from decoding.network.target import Target
from decoding.pace.schedule import Schedule
from decoding.sampling.rows import Rule
from decoding.sequence import Sequence


def make_lane(
    target: Target,
    drafter: Drafter,
    schedule: Schedule,
    waiting: deque[Sequence],
    *,
    rule: Rule,
    **sizes: Any,
) -> Lane:
    """Make a lane of these sizes (see `Lane`)."""
    ahead: Starter | None = None
    if kernels_run_on(target.device):
        from decoding.engine.overlapped.rounds_ahead import RoundsAhead  # Triton is only where the kernels run

        if can_overlap(target, drafter, rule):
            is_recorded = target.device.type == "cuda" and os.environ.get("DRAY_GRAPHS", "on") != "off"
            model_drafter = drafter if isinstance(drafter, ModelDrafter) else None
            assert isinstance(target, LanguageModel)
            ahead = RoundsAhead(target, model_drafter, sizes["num_slots"], cuda_recorder() if is_recorded else None)
            schedule.never_rest()  # a round's time is that of the device, in which the host's work is hidden
    return Lane(target, drafter, schedule, waiting, rule=rule, ahead=ahead, **sizes)


def can_overlap(target: Target, drafter: Drafter, rule: Rule) -> bool:
    """Tell whether rounds of these can be started before the last one is read.

    The layers of target and draft must run on our GPU kernels, the draft must be a model with the target's tokens or
    none, no close call may be decided by the host, and no drafter may read the target's features.
    """
    if rule.text_depends_on_draft or not isinstance(target, LanguageModel) or target.close_call or target.tap:
        return False
    models = [target]
    if isinstance(drafter, ModelDrafter) and not drafter.vocabulary.is_mapped:
        models.append(drafter.model)
    elif not isinstance(drafter, NoDrafter):
        return False
    return all(model.fused is not None and model.fused.is_on_gpu for model in models)
