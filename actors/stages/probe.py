"""The measurement that decides whether a chain of stages may run: its slots against its own plain forwards.

It makes the same forwards as `decoding/network/probe.py` does in one process: ragged prefill, junk tokens, a rollback
and a continuation. `tests/decoding/network/test_stage.py` shows that a chain of plain forwards computes what the whole
model computes, and `tests/decoding/checkpoint/test_rank.py` shows it for layers that several processes share.
"""

import logging
from collections.abc import Callable
from functools import partial

import torch

from actors.stages.pipeline import StagesGoneError
from actors.stages.target import ShardedModel
from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.supported import load_config, model_folder
from decoding.fused.decoder import NOT_FUSED
from decoding.network.probe import MISLEADING, check_lengths, fused_tolerance, tolerance_of
from decoding.network.probe_rows import NUM_REAL, RAGGED, SLOTS, ProbeRows, ragged, relative_deviation
from decoding.sampling.rules import close_call_margin

_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError)
_log = logging.getLogger(__name__)


def check_chain(model: ShardedModel, name: str) -> float:
    """Return the relative deviation found, or raise a ValueError that quotes it. The slots are gone afterwards.

    Stages that can be made faster (`Stage.speed_up`) are then made so, and measured again, against the same forwards.
    """
    config, pipeline = load_config(model_folder(name)), model.pipeline
    is_fp8 = fp8_format(config) is not None
    lengths, tolerance = check_lengths(config, name, model.dtype, is_fp8=is_fp8), tolerance_of(model.dtype, is_fp8)
    rows = ProbeRows.of(model.vocab_size, lengths.reach, model.max_positions)
    repeat = pipeline.repeat  # where a stage is lost meanwhile
    try:
        plain = [repeat(partial(model.plain_logits, text, NUM_REAL)).float() for text in rows.texts]
        measure = partial(repeat, partial(_measured, model, rows, plain))
        deviation = measure()
        if not deviation <= tolerance:  # perhaps the model does not bear packed rows
            pipeline.tell_all("change", "packs_rows", False)
            deviation = measure()
        if lengths.needs_rows_apart or _is_misled(model, measure, tolerance):
            pipeline.tell_all("change", "runs_rows_apart", True)
            deviation = measure()
    except StagesGoneError:
        raise
    except _FAILURES as error:
        raise ValueError(f"{name!r} cannot run in stages: {type(error).__name__}: {error}") from error
    if not deviation <= tolerance:
        raise ValueError(
            f"{name!r} does not compute the same in stages on the slot cache as alone: after a rollback its logits are "
            f"off by {deviation:.1e} of their size, where {tolerance:.0e} is rounding; run it whole "
            "(stages.count 1, stages.tensor_parallel 1)"
        )
    if not lengths.may_fuse:
        model.fallback = f"{NOT_FUSED}: a miniature of it deviates when they are fused"
        pipeline.tell_all("change", "may_fuse", False)
    pipeline.tell_all("speed_up")
    fused = measure()
    if not fused <= fused_tolerance(model.dtype, deviation, is_fp8=is_fp8):
        model.fallback = f"{NOT_FUSED}: logits are off by {fused:.1e}"
        _log.warning("%r is slower than it should be: %s", name, model.fallback)
        pipeline.tell_all("call", "slow_down")
        fused = measure()
    if not fused <= tolerance:
        raise ValueError(
            f"{name!r} computes the same in stages, but not with its weights laid out for this processor (off by "
            f"{fused:.1e}); set DRAY_KERNELS=off to run without our kernels, and report this"
        )
    model.close_call = close_call_margin(model.dtype, max(deviation, fused))
    return max(deviation, fused)


def _is_misled(model: ShardedModel, measure: Callable[[], float], tolerance: float) -> bool:
    """Tell whether the layers depend on the length that a cache says it has, which is not that of each row."""
    model.pipeline.tell_all("change", "misleads", MISLEADING)
    try:
        return not measure() <= tolerance
    except StagesGoneError:
        raise
    except _FAILURES:
        return True
    finally:
        model.pipeline.tell_all("change", "misleads", 0)


def _measured(model: ShardedModel, rows: ProbeRows, plain: list[torch.Tensor]) -> float:
    """Return the deviation as the stages are now, of rows of one length and of ragged ones."""
    model.facts_of_stages = model.pipeline.facts()
    model.allocate(len(SLOTS), rows.num_positions)
    for tokens, starts in rows.pieces:
        model.prefill(SLOTS, tokens, starts)
    model.logits(SLOTS, rows.starts, rows.junk)
    found = model.logits(SLOTS, rows.starts, rows.real).float()
    cut = [real[:length] for real, length in zip(rows.real, RAGGED, strict=True)]
    found_ragged = model.logits(SLOTS, rows.starts, cut).float()
    model.release()
    return relative_deviation([*found, *ragged(found_ragged)], [*plain, *ragged(plain)])
