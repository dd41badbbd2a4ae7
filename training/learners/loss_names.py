"""Names of the losses in `training/learners/losses.py`, for configurations, which need no torch."""

from typing import Literal, get_args

LossName = Literal["kl", "ce", "tv", "kl_tv"]
LOSSES: tuple[LossName, ...] = get_args(LossName)
