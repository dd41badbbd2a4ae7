"""The measurement that decides whether a chain of stages may run: its slots against its own plain forwards.

As `decoding/probe.py` does for a model in one process: ragged prefill, junk tokens, a rollback and a continuation. That
a chain of plain forwards computes what the whole model computes is what `tests/decoding/test_stage.py` shows, and
`tests/decoding/test_rank.py` where layers are shared out.
"""

from __future__ import annotations

import logging
from functools import partial

import torch

from actors.sharded_model import ShardedModel
from actors.stage_actor import unpacked
from actors.stage_answers import answer_of
from actors.stage_group import StageGroup
from actors.stage_pipeline import StagesGoneError
from decoding.probe import FUSED_TOLERANCE, TOLERANCE

_PROMPT_LENGTHS = (5, 1, 41)
_SLOTS = (2, 0, 1)
_NUM_JUNK = 4
_NUM_REAL = 3
_RAGGED = (3, 1, 2)
_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError)
_log = logging.getLogger(__name__)


def check_chain(model: ShardedModel, name: str) -> float:
    """The relative deviation found, or a ValueError that quotes it. The slots are gone afterwards.

    Stages that can be made faster (`Stage.speed_up`) are then made so, and measured again, against the same forwards.
    """
    group = model.pipeline.group
    rows, junk = _tokens(model, _prompt_lengths(model))
    try:
        plain = [model.pipeline.surely(partial(_plain, group, row)) for row in rows]
        deviation = _measured(model, rows, junk, plain)
        if not deviation <= TOLERANCE[model.dtype]:  # perhaps the model does not bear packed rows
            group.tell_all("set_packs_rows", False)
            deviation = _measured(model, rows, junk, plain)
    except StagesGoneError:
        raise
    except _FAILURES as error:
        raise ValueError(f"{name!r} cannot run in stages: {type(error).__name__}: {error}") from error
    if not deviation <= TOLERANCE[model.dtype]:
        raise ValueError(
            f"{name!r} does not compute the same in stages on the slot cache as alone: after a rollback its logits are "
            f"off by {deviation:.1e} of their size, where {TOLERANCE[model.dtype]:.0e} is rounding; run it whole "
            "(stages.count 1, stages.tensor_parallel 1)"
        )
    group.tell_all("speed_up")
    fused = _measured(model, rows, junk, plain)
    if not fused <= FUSED_TOLERANCE.get(model.dtype, TOLERANCE[model.dtype]):
        _log.warning("%r is off by %.1e when its layers are fused: transformers' code runs", name, fused)
        group.tell_all("slow_down")
        fused = _measured(model, rows, junk, plain)
    if not fused <= TOLERANCE[model.dtype]:
        raise ValueError(
            f"{name!r} computes the same in stages, but not with its weights laid out for this processor (off by "
            f"{fused:.1e}); set DRAY_KERNELS=off to run without our kernels, and report this"
        )
    return max(deviation, fused)


def _prompt_lengths(model: ShardedModel) -> list[int]:
    """The last one longer than a window that the model file cuts by itself."""
    reach = model.facts_of_stages[0].window
    if model.max_positions is not None:
        reach = max(0, min(reach, model.max_positions - max(_PROMPT_LENGTHS) - _NUM_JUNK))
    return [*_PROMPT_LENGTHS[:-1], _PROMPT_LENGTHS[-1] + reach]


def _tokens(model: ShardedModel, prompt_lengths: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of prompt and real tokens, and junk for each."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(model.vocab_size, (n - 1 + _NUM_REAL,), generator=generator).tolist() for n in prompt_lengths]
    junk = [torch.randint(model.vocab_size, (_NUM_JUNK,), generator=generator).tolist() for _ in rows]
    return rows, junk


def _plain(group: StageGroup, row: list[int]) -> torch.Tensor:
    """The last logits [_NUM_REAL, V] of a row, by one forward through all stages with transformers' own attention."""
    fed: object = row
    answers = []
    for stage in range(group.settings.count):
        answers.append(group.run(stage, "plain_eager", fed, _NUM_REAL))
        fed = answers[-1][0]
    return unpacked(answer_of(group, answers, group.settings.start_timeout_s)).float()  # the first forward starts much


def _measured(model: ShardedModel, rows: list[list[int]], junk: list[list[int]], plain: list[torch.Tensor]) -> float:
    """Largest difference of logits, relative to the largest logit."""
    model.facts_of_stages = model.pipeline.group.facts()
    starts = [len(row) - _NUM_REAL for row in rows]
    model.allocate(len(_SLOTS), max(starts) + max(_NUM_JUNK, _NUM_REAL))
    model.prefill(_SLOTS, [row[:start] for row, start in zip(rows, starts, strict=True)])
    model.logits(_SLOTS, starts, junk, _NUM_JUNK)
    found = model.logits(_SLOTS, starts, [row[-_NUM_REAL:] for row in rows], _NUM_REAL).float()
    real = [row[start : start + length] for row, start, length in zip(rows, starts, _RAGGED, strict=True)]
    ragged = model.logits(_SLOTS, starts, real, _NUM_REAL).float()
    model.release()
    differences = [float((row - expected).abs().max()) for row, expected in zip(found, plain, strict=True)]
    differences += [
        float((row[:length] - expected[:length]).abs().max())
        for row, expected, length in zip(ragged, plain, _RAGGED, strict=True)
    ]
    size = max(float(expected.abs().max()) for expected in plain)
    return max(differences) / size if size else float("inf")
