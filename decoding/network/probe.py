"""The probe: a measurement that decides whether a model may run, our slots against the model's own plain forward.

Ragged rows are prefilled into scattered slots, in two pieces, junk tokens are verified and rolled back, and real tokens
follow. Their logits must equal those of one plain forward with transformers' default attention, as in `generate`.
Whether rows may be packed is measured as well; a model that packing changes gets rectangles.
"""

import logging
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding.cache import slot_attention as attention
from decoding.checkpoint.miniature import lengths_in, miniature
from decoding.checkpoint.supported import NETWORK_FAILURES, in_one_line, max_positions
from decoding.device import is_device_fault, is_out_of_memory, to_device
from decoding.families.family import FAMILIES
from decoding.fused.packed_linear import use_library_products
from decoding.gpu.available import kernel_errors
from decoding.network.invariance import is_invariant
from decoding.network.language_model import LanguageModel
from decoding.network.probe_rows import FEWEST_POSITIONS, NUM_REAL, RAGGED, SLOTS, ProbeRows, ragged, relative_deviation
from decoding.sampling.rules import close_call_margin

# Measured over 104 model classes in float32: 2e-7 to 2e-6. The margin is two orders of magnitude, a wrong mask is 1e-2.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
# Fused layers round like transformers' own code: within this much, or within twice that code's own deviation
# (a model with large activations multiplies last bits: Gemma 3 270M deviates by 1.4e-5 there, and by 1.0e-5 fused).
# Close calls (`judging.close_call_margin`) follow the deviation that is measured. Most models: below 2e-6.
FUSED_TOLERANCE = {torch.float32: 1e-5}
# A last bit can decide to which FP8 number an activation is rounded. It then moves by a sixteenth, and layers multiply
# such moves (docs/adr/0026). Measured over random models of 3 to 24 layers: 0.05 to 0.21; a wrong mask is 0.7 to 1.7.
FP8_TOLERANCE = 0.4
MISLEADING = 4096  # tokens

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a probe finds of a model."""

    plain: list[torch.Tensor]  # each row's last logits [J, V] by plain forwards
    reach: int  # `Lengths.reach`
    own: float  # the relative deviation of transformers' code on the slots
    fused: float  # and of fused layers


def check_again(model: LanguageModel, name: str, found: Found) -> None:
    """Measure a model that comes laid out against the plain forwards of before; raise a ValueError if it is off."""
    model.speed_up()
    rows = ProbeRows.of(model.vocab_size, found.reach, model.max_positions)
    fused = float("inf") if model.fused is None else _fused_deviation(model, name, found.plain, rows)
    if not fused <= fused_tolerance(model.dtype, found.own):
        raise ValueError(f"its logits are off by {fused:.1e} of their size")
    model.close_call = close_call_margin(model.dtype, max(fused, found.own))


def check_model(model: LanguageModel, name: str) -> float:
    """Return the relative deviation found; raise a ValueError that quotes it if it is too large.

    A network that can be made faster (`LanguageModel.speed_up`) is then made so, and measured again against what it
    computed before anything was changed. The model's cache is lost, and its tap is taken off.
    """
    model.hand_out(None)
    lengths = check_lengths(model.network.config, name, model.dtype, is_fp8=model.is_fp8)
    if lengths.needs_rows_apart:
        model.runs_rows_apart, model.packs_rows = True, False
    rows = ProbeRows.of(model.vocab_size, lengths.reach, model.max_positions)
    try:
        plain = _plain_logits(model, rows)
    except NETWORK_FAILURES as error:
        _raise_if_of_the_machine(error)
        raise ValueError(f"{name!r} cannot run: {in_one_line(error)}") from error
    if not all(logits_JV.isfinite().all() for logits_JV in plain):
        raise ValueError(
            f"{name!r} computes logits that are not finite numbers, without the slot cache too: its weights are "
            f"damaged, or {str(model.dtype).removeprefix('torch.')} is too narrow for it; copy or download it again, "
            "or choose another dtype"
        )
    deviation = _checked(model, name, plain, rows)
    model.found, packs_rows = None, model.packs_rows
    model.may_fuse = lengths.may_fuse
    model.speed_up()
    if model.fused is not None:
        fused_deviation = _fused_deviation(model, name, plain, rows)
        if not fused_deviation <= fused_tolerance(model.dtype, deviation, is_fp8=model.is_fp8):
            model.why_not_fused = model.why_not_fused or f"logits are off by {fused_deviation:.1e}"
            model.fused, model.graphs, model.packs_rows = None, None, packs_rows
            _log.warning("%r is slower than it should be: %s", name, model.fallback)
            if fused_deviation == float("inf") and model.has_exact_products:  # they may be what cannot run
                use_library_products(model.network)
                model.exact = "off"
        else:
            model.found = Found(plain, lengths.reach, deviation, fused_deviation)
    try:
        deviation = max(deviation, model.found.fused if model.found else _checked(model, name, plain, rows))
    except ValueError as error:
        raise ValueError(
            f"{name!r} computes the same on the slot cache, but not with its weights laid out for this processor; "
            f"set DRAY_KERNELS=off to run without our kernels, and report this ({error})"
        ) from error
    model.close_call = close_call_margin(model.dtype, deviation)
    if model.has_exact_products:
        model.is_measured_invariant = is_invariant(model)
    return deviation


def _fused_deviation(model: LanguageModel, name: str, plain: list[torch.Tensor], rows: ProbeRows) -> float:
    """Return by how much fused layers deviate; infinity if they cannot run."""
    try:
        return _measured(model, plain, rows)
    except NETWORK_FAILURES + kernel_errors() as error:
        _raise_if_of_the_machine(error)
        model.why_not_fused = f"they cannot run here ({in_one_line(error)})"
        return float("inf")


def _raise_if_of_the_machine(error: BaseException) -> None:
    """Raise an error again that says nothing about the model: memory ran out, or the device failed."""
    if is_out_of_memory(error) or is_device_fault(error):
        raise error


class ArchitectureError(ValueError):
    """The architecture of a model cannot run, whatever its weights and the lengths of its texts."""


class Lengths(NamedTuple):
    """What is known of a model that changes its ways at some length of a text."""

    needs_rows_apart: bool = False
    reach: int = 0  # tokens by which a probe's text must be longer to cross all lengths that no miniature has shown
    may_fuse: bool = True  # whether fused layers compute the same beyond these lengths


def tolerance_of(dtype: torch.dtype, is_fp8: bool) -> float:
    """Return the relative deviation of logits up to which two right ways to compute them may differ."""
    return FP8_TOLERANCE if is_fp8 else TOLERANCE[dtype]


def fused_tolerance(dtype: torch.dtype, deviation: float, *, is_fp8: bool = False) -> float:
    """Return up to which deviation fused layers are used, given that of transformers' own code."""
    least, most = FUSED_TOLERANCE.get(dtype), tolerance_of(dtype, is_fp8)
    return most if least is None else min(most, max(least, 2 * deviation))


def check_lengths(
    config: PretrainedConfig, name: str, dtype: torch.dtype = torch.float32, *, is_fp8: bool = False
) -> Lengths:
    """Return what a probe must know of the lengths in a model's configuration.

    A text that crosses a window, a chunk or a scale of some thousand tokens is too long for a probe. So a miniature of
    the model is probed, in which each length is shorter than the probe's text; its weights are random numbers. Where no
    miniature can be made, the real model is probed with a text that is long enough. A model with FP8 weights, and
    one of another dtype than float32 whose layers may be fused, always has a miniature, in float32, because its own
    logits show coarse faults only. Raises a ValueError if the slots are wrong beyond one of the lengths.
    """
    limit, lengths = max_positions(config), lengths_in(config)
    if limit is not None and limit < FEWEST_POSITIONS:
        raise ValueError(
            f"{name!r} sees {limit} positions, and a model is measured with {FEWEST_POSITIONS} before it runs; "
            "use one with a longer context"
        )
    crossed = [length for length in lengths if limit is None or length < limit]
    has_family = config.model_type in FAMILIES
    if not crossed and not is_fp8 and not (has_family and dtype is not torch.float32):
        return Lengths()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = AutoModelForCausalLM.from_config(miniature(config, is_wide=has_family))
        small = LanguageModel(network.float(), frozenset())
        rows = ProbeRows.of(small.vocab_size, 0, small.max_positions)
        plain = _plain_logits(small, rows)
    except NETWORK_FAILURES as error:
        _raise_if_of_the_machine(error)
        _log.info("no miniature of %r can be made, so the probe's text is long: %s", name, error)
        return Lengths(reach=max(crossed, default=0))
    try:
        deviation = _checked(small, name, plain, rows)
        needs_rows_apart, may_fuse = small.runs_rows_apart, True
        small.speed_up()
        if small.fused is not None and not needs_rows_apart:
            may_fuse = _fused_deviation(small, name, plain, rows) <= fused_tolerance(small.dtype, deviation)
            if not may_fuse:
                _log.warning("a miniature of %r deviates when its layers are fused: transformers' code runs", name)
        return Lengths(needs_rows_apart, may_fuse=may_fuse)
    except ArchitectureError:
        raise
    except ValueError as error:
        where = "in texts that are longer than one of its windows, chunks or scales" if crossed else "in float32"
        raise ValueError(f"{where}, {error}") from error


def _checked(model: LanguageModel, name: str, plain: list[torch.Tensor], rows: ProbeRows) -> float:
    try:
        deviation = _measured(model, plain, rows)
    except NETWORK_FAILURES as error:
        _raise_if_of_the_machine(error)
        found = in_one_line(error)
        _refuse_own_attention(model, name, found)
        raise ValueError(f"{name!r} cannot run on the slot cache: {found}") from error
    tolerance = tolerance_of(model.dtype, model.is_fp8)
    if not deviation <= tolerance:
        _refuse_own_attention(model, name, "its logits come out wrong")
        raise ValueError(
            f"{name!r} does not compute the same on the slot cache as alone: after a rollback its logits are off by "
            f"{deviation:.1e} of their size, where {tolerance:.0e} is rounding. Its text would not be the target's own"
        )
    return deviation


def _refuse_own_attention(model: LanguageModel, name: str, found: str) -> None:
    """Raise an ArchitectureError if the failure that was `found` is of attention that ours has not replaced."""
    config = model.network.config.get_text_config()
    if config._attn_implementation != attention.SLOT_ATTENTION:
        raise ArchitectureError(
            f"{name!r} cannot run: its architecture ({config.model_type}) has attention code of its own in "
            f"transformers, which does not work where rows of different lengths share a cache ({found}); choose a "
            "model of another architecture"
        )


@torch.inference_mode()
def _plain_logits(model: LanguageModel, rows: ProbeRows) -> list[torch.Tensor]:
    """Return each row's last logits [J, V] from one forward of the network itself, with transformers' attention."""
    with attention.default_attention(model.network):
        return [
            model.network(input_ids=to_device([text], model.device), use_cache=False).logits[0, -NUM_REAL:]
            for text in rows.texts
        ]


@torch.inference_mode()
def _measured(model: LanguageModel, plain: list[torch.Tensor], rows: ProbeRows) -> float:
    model.allocate(len(SLOTS), rows.num_positions)
    may_pack, model.packs_rows = model.packs_rows, False  # rectangles first: packing is compared with them
    for tokens, starts in rows.pieces:
        model.prefill(SLOTS, tokens, starts)
    junk_BJ, real_BJ = to_device(rows.junk, model.device), to_device(rows.real, model.device)
    model.forward(rows.starts, junk_BJ, _every(junk_BJ), slots=SLOTS)
    for _ in range(_num_times(model)):
        found_BJV = model.forward(rows.starts, real_BJ, _every(real_BJ), slots=SLOTS).clone()  # a recording's are lent
    if model.fused is None and not model.runs_rows_apart and _is_misled(model, rows.starts, real_BJ, found_BJV):
        model.runs_rows_apart = True
        return _measured(model, plain, rows)
    if may_pack:
        model.packs_rows = _packs(model, rows.starts, real_BJ, found_BJV)
    model.cache = None
    return relative_deviation(list(found_BJV), plain)


def _is_misled(model: LanguageModel, starts: list[int], real_BJ: torch.Tensor, found_BJV: torch.Tensor) -> bool:
    """Tell whether the model depends on the length that the cache says it has, which is not that of each row."""
    assert model.cache is not None
    model.cache.misleads = MISLEADING
    try:
        misled_BJV = model.forward(starts, real_BJ, _every(real_BJ), slots=SLOTS)
    except NETWORK_FAILURES as error:
        _raise_if_of_the_machine(error)
        return True
    finally:
        model.cache.misleads = 0
    return not relative_deviation(list(misled_BJV), list(found_BJV)) <= tolerance_of(model.dtype, model.is_fp8)


def _packs(model: LanguageModel, starts: list[int], real_BJ: torch.Tensor, found_BJV: torch.Tensor) -> bool:
    """Tell whether ragged rows, packed end to end, get the logits they got in a rectangle."""
    model.packs_rows = True
    try:
        for _ in range(_num_times(model)):
            packed_BJV = model.forward(starts, real_BJ, _every(real_BJ), slots=SLOTS, lengths=RAGGED)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        _raise_if_of_the_machine(error)
        return False
    return relative_deviation(ragged(packed_BJV), ragged(found_BJV)) <= tolerance_of(model.dtype, model.is_fp8)


def _every(token_ids_BJ: torch.Tensor) -> torch.Tensor:
    """Return the indexes of all tokens of each row."""
    return torch.arange(token_ids_BJ.shape[1], device=token_ids_BJ.device).expand_as(token_ids_BJ)


def _num_times(model: LanguageModel) -> int:
    """Return how often to run a forward to see all of its ways: plain, recorded, replayed."""
    return 1 if model.graphs is None else 3
