"""What stages answer to a step: waiting for all of them, and telling a lost stage from an error of the step itself."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any

import ray
from ray.exceptions import RayError

from actors.stage_group import StageGroup, StageLostError, cause_of, is_loss
from decoding.memory import is_out_of_memory

_LOOK_EVERY_S = 1.0  # whether a rank has failed for which the others of its stage wait


def answer_of(group: StageGroup, references: Seq[Seq[Any]]) -> Any:
    """The last stage's answer, when all ranks of all stages have answered; `references[s]` are those of stage s.

    Raises StageLostError where a process or an object is gone, or late; a stage that is late is ended. An error of the
    step itself is raised as it is; ranks of a stage that raise one are ended, since they may be anywhere in a forward.
    """
    shortage = _wait(group, references)
    try:
        return ray.get(references[-1][0])
    except RayError as error:
        errors = [error] if group.settings.tensor_parallel == 1 else _first_errors(group, references)
        if shortage is None and any(is_loss(each) for each in errors):
            raise StageLostError(f"a stage is lost: {type(error).__name__}") from error
        raise shortage or cause_of(error) from None


def _wait(group: StageGroup, references: Seq[Seq[Any]]) -> Exception | None:
    """Return when all have answered, or can no more; with the error of a rank that ran out of memory."""
    shortage: Exception | None = None
    settings = group.settings
    look_every_s = settings.timeout_s if settings.tensor_parallel == 1 else _LOOK_EVERY_S
    until = time.monotonic() + settings.timeout_s
    pending = [reference for answers in references for reference in answers]
    while pending:
        left_s = until - time.monotonic()
        if left_s <= 0:
            late = next(stage for stage, answers in enumerate(references) if set(answers) & set(pending))
            group.end(late)
            raise StageLostError(f"stage {late} did not do a step in {settings.timeout_s:g} s (stages.timeout_s)")
        _, pending = ray.wait(pending, num_returns=len(pending), timeout=min(look_every_s, left_s), fetch_local=False)
        for stage, answers in enumerate(references):
            here = [reference for reference in answers if reference not in pending]
            errors = _errors(here) if len(here) < len(answers) else []
            if errors:
                group.end(stage)  # the others wait for what will not come
                shortage = next((cause for cause in map(cause_of, errors) if is_out_of_memory(cause)), shortage)
    return shortage


def _first_errors(group: StageGroup, references: Seq[Seq[Any]]) -> list[RayError]:
    """Those of the first stage that has any, which is ended; those behind it did not begin the step."""
    for stage, answers in enumerate(references):
        errors = _errors(answers)
        if errors:
            group.end(stage)
            return errors
    return []


def _errors(answers: Seq[Any]) -> list[RayError]:
    """Of the ranks that failed, which have answered."""
    errors: list[RayError] = []
    for reference in answers:
        try:
            ray.get(reference)
        except RayError as error:
            errors.append(error)
    return errors
