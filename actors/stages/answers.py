"""Answers of stages to a step: waiting for all of them, and telling a lost stage from an error of the step itself."""

import time
from collections.abc import Sequence as Seq
from typing import Any

import ray
from ray.exceptions import RayError

from actors.stages.group import StageGroup, StageLostError, cause_of, is_loss
from decoding.device import is_out_of_memory

_LOOK_EVERY_S = 1.0  # whether a rank has failed for which the others of its stage wait


def answer_of(group: StageGroup, references: Seq[Seq[Any]], timeout_s: float | None = None) -> Any:
    """Wait until all ranks of all stages have answered; return the last stage's answer.

    `references[s]` are those of stage s. Raises StageLostError where a process or an object is gone, or late
    (`stages.timeout_s` unless given); a stage that is late is ended. An error of the step itself is raised as it is.
    Where several ranks share a stage, an error of the step is one that all of them raise, or memory that runs out in
    any; what only some raise is a loss. The ranks are ended in every case, since they may be anywhere in a forward.
    """
    torn = _wait(group, references, group.settings.timeout_s if timeout_s is None else timeout_s)
    if group.settings.tensor_parallel > 1:
        _look_at_all(group, references, torn)
    try:
        return ray.get(references[-1][0])
    except RayError as error:
        if is_loss(error):  # of this stage, or of one before it, whose answer is its input
            raise StageLostError(f"a stage is lost: {type(error).__name__}") from error
        raise cause_of(error) from None


def _wait(group: StageGroup, references: Seq[Seq[Any]], timeout_s: float) -> set[int]:
    """Wait for all answers. Return the stages in which some ranks failed: they are ended, since the others wait."""
    torn: set[int] = set()
    look_every_s = timeout_s if group.settings.tensor_parallel == 1 else _LOOK_EVERY_S
    until = time.monotonic() + timeout_s
    pending = [reference for answers in references for reference in answers]
    while pending:
        left_s = until - time.monotonic()
        if left_s <= 0:
            late = next(stage for stage, answers in enumerate(references) if set(answers) & set(pending))
            group.end(late)
            what = "stages.timeout_s" if timeout_s == group.settings.timeout_s else "stages.start_timeout_s"
            raise StageLostError(f"stage {late} did not do a step in {timeout_s:g} s ({what})")
        _, pending = ray.wait(pending, num_returns=len(pending), timeout=min(look_every_s, left_s), fetch_local=False)
        for stage, answers in enumerate(references):
            here = [reference for reference in answers if reference not in pending]
            if 0 < len(here) < len(answers) and _errors(here):
                group.end(stage)
                torn.add(stage)
    return torn


def _look_at_all(group: StageGroup, references: Seq[Seq[Any]], torn: set[int]) -> None:
    """Raise what the ranks of a stage raised; of several stages the first, since those behind it did not begin.

    An answer is worth something only if every rank has one: a sum in which a part is missing is an answer, too. In a
    stage that was torn apart, what the others raise is that they lost each other.
    """
    for stage, answers in enumerate(references):
        # The first rank's may be large, and lie on another node: it is not fetched to see that it is there.
        looked_at = answers if stage == len(references) - 1 else answers[1:]
        if not _errors(looked_at):
            continue
        errors = _errors(answers)
        group.end(stage)
        own = [cause_of(error) for error in errors if not is_loss(error)]
        shortage = next((error for error in own if is_out_of_memory(error)), None)
        if shortage is not None or (len(own) == len(answers) and stage not in torn):
            raise shortage or own[0]
        raise StageLostError(f"stage {stage} is lost: {errors[-1]}") from errors[-1]


def _errors(answers: Seq[Any]) -> list[RayError]:
    """Return the errors among these answers, which are all there."""
    return [error for reference in answers if (error := error_of(reference)) is not None]


def error_of(reference: Any, timeout_s: float | None = None) -> RayError | None:
    """Return the error that an answer is, or GetTimeoutError if it takes longer; None if it is none."""
    try:
        ray.get(reference, timeout=timeout_s)
    except RayError as error:
        return error
    return None
