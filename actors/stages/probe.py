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
from decoding.checkpoint.rank import check_exact_ranks
from decoding.checkpoint.supported import in_one_line, load_config, model_folder
from decoding.choices import Exact
from decoding.device import is_out_of_memory
from decoding.network.invariance import are_invariant
from decoding.network.probe import MISLEADING, check_lengths, fused_tolerance, tolerance_of
from decoding.network.probe_rows import NUM_REAL, RAGGED, SLOTS, ProbeRows, ragged, relative_deviation
from decoding.sampling.rules import close_call_margin

_FAILURES = (RuntimeError, TypeError, AttributeError, IndexError, KeyError)
_log = logging.getLogger(__name__)


def check_chain(model: ShardedModel, name: str, exact: Exact = "off") -> float:
    """Return the relative deviation found, or raise a ValueError that quotes it. The slots are gone afterwards.

    Stages that can be made faster (`Stage.speed_up`, with the products of `exact`) are then made so, and measured
    again, against the same forwards. On a GPU whose products are exact it is measured whether the batch changes a bit.
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
        pipeline.tell_all("change", "may_fuse", False)
    pipeline.tell_all("change", "exact", exact)
    pipeline.tell_all("speed_up")
    fused, why = _when_fused(measure)
    if not fused <= fused_tolerance(model.dtype, deviation, is_fp8=is_fp8):
        pipeline.tell_all("call", "slow_down", why or f"logits are off by {fused:.1e}")
        fused = measure()
    if not fused <= tolerance:
        raise ValueError(
            f"{name!r} computes the same in stages, but not with its weights laid out for this processor (off by "
            f"{fused:.1e}); set DRAY_KERNELS=off to run without our kernels, and report this"
        )
    model.close_call = close_call_margin(model.dtype, max(deviation, fused))
    model.facts_of_stages = repeat(pipeline.facts)
    if model.fallback:
        _log.warning("%r is slower than it should be: %s", name, model.fallback)
    if model.has_exact_products and repeat(partial(_is_invariant, model)):
        pipeline.tell_all("change", "is_measured_invariant", True)
        model.facts_of_stages = repeat(pipeline.facts)
    _refuse_inexact_ranks(model, name, exact)
    return max(deviation, fused)


def _refuse_inexact_ranks(model: ShardedModel, name: str, exact: Exact) -> None:
    num_ranks = model.facts()["ranks"]
    if num_ranks > 1 and not model.is_batch_invariant:
        why = model.fallback or "no fused layers of ours run all of it there"
        check_exact_ranks(name, num_ranks, str(model.dtype).removeprefix("torch."), exact, why)


def _when_fused(measure: Callable[[], float]) -> tuple[float, str]:
    """Return the deviation of stages that were made faster; infinity, and why, if they cannot run so."""
    try:
        return measure(), ""
    except StagesGoneError:
        raise
    except Exception as error:  # the compiler of kernels, in another process, has errors of its own
        if is_out_of_memory(error):
            raise
        return float("inf"), f"they cannot run here ({in_one_line(error)})"


def _is_invariant(model: ShardedModel) -> bool:
    def score(starts: list[int], tokens: list[list[int]]) -> torch.Tensor:
        return model.logits(range(len(starts)), starts, tokens, _of_the_last_row)[0]

    try:
        return are_invariant(model, score, num_ways=_num_times(model))
    finally:
        model.release()


def _of_the_last_row(logits_BJV: torch.Tensor) -> torch.Tensor:
    return logits_BJV[-1:].cpu()


def _num_times(model: ShardedModel) -> int:
    """Return how often to run a forward to see all of its ways: plain, recorded, replayed."""
    return 3 if model.facts()["graphs"] else 1


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
    cut = [real[:length] for real, length in zip(rows.real, RAGGED, strict=True)]
    for _ in range(_num_times(model)):
        found = model.logits(SLOTS, rows.starts, rows.real).float()
    for _ in range(_num_times(model)):
        found_ragged = model.logits(SLOTS, rows.starts, cut).float()
    model.release()
    return relative_deviation([*found, *ragged(found_ragged)], [*plain, *ragged(plain)])
