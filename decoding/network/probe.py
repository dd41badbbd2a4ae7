"""The probe: a measurement that decides whether a model may run, our slots against the model's own plain forward.

Ragged rows are prefilled into scattered slots, junk tokens are verified and rolled back, and real tokens follow. The
logits of the real tokens must equal those of one plain forward with transformers' own eager attention. Whether rows may
be packed is measured as well; a model that packing changes gets rectangles.
"""

import logging

import torch

from decoding.cache import slot_attention as attention
from decoding.checkpoint.supported import own_window
from decoding.device import to_device
from decoding.network.language_model import LanguageModel
from decoding.network.probe_rows import NUM_REAL, RAGGED, SLOTS, ProbeRows, ragged, relative_deviation

# Measured over 104 model classes in float32: 2e-7 to 2e-6. The margin is two orders of magnitude, a wrong mask is 1e-2.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
# Close calls (`judging.CLOSE_CALL`) rely on float32 being this exact, whichever code runs. Measured: below 2e-6.
FUSED_TOLERANCE = {torch.float32: 1e-5}
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)

_log = logging.getLogger(__name__)


def check_model(model: LanguageModel, name: str) -> float:
    """Return the relative deviation found; raise a ValueError that quotes it if it is too large.

    A network that can be made faster (`LanguageModel.speed_up`) is then made so, and measured again against what it
    computed before anything was changed. The model's cache is lost.
    """
    try:
        plain = _plain_logits(model)
    except _FAILURES as error:
        raise ValueError(f"{name!r} cannot run: {type(error).__name__}: {error}") from error
    deviation = _checked(model, name, plain)
    packs_rows = model.packs_rows
    model.speed_up()
    if model.fused is not None:
        try:
            fused_deviation = _measured(model, plain)
        except _FAILURES:
            fused_deviation = float("inf")
        if not fused_deviation <= FUSED_TOLERANCE.get(model.dtype, TOLERANCE[model.dtype]):
            _log.warning("%r is off by %.1e when its layers are fused: transformers' code runs", name, fused_deviation)
            model.fused, model.graphs, model.packs_rows = None, None, packs_rows
    try:
        return max(deviation, _checked(model, name, plain))
    except ValueError as error:
        raise ValueError(
            f"{name!r} computes the same on the slot cache, but not with its weights laid out for this processor; "
            f"set DRAY_KERNELS=off to run without our kernels, and report this ({error})"
        ) from error


def _checked(model: LanguageModel, name: str, plain: list[torch.Tensor]) -> float:
    try:
        deviation = _measured(model, plain)
    except _FAILURES as error:
        raise ValueError(f"{name!r} cannot run on the slot cache: {type(error).__name__}: {error}") from error
    tolerance = TOLERANCE[model.dtype]
    if not deviation <= tolerance:
        raise ValueError(
            f"{name!r} does not compute the same on the slot cache as alone: after a rollback its logits are off by "
            f"{deviation:.1e} of their size, where {tolerance:.0e} is rounding. Its text would not be the target's own"
        )
    return deviation


def _rows(model: LanguageModel) -> ProbeRows:
    return ProbeRows.of(model.vocab_size, own_window(model.network.config), model.max_positions)


@torch.inference_mode()
def _plain_logits(model: LanguageModel) -> list[torch.Tensor]:
    """Return each row's last logits [J, V] from one forward of the network itself, with its own eager attention."""
    attention.uninstall(model.network)
    try:
        return [
            model.network(input_ids=to_device([text], model.device), use_cache=False).logits[0, -NUM_REAL:]
            for text in _rows(model).texts
        ]
    finally:
        attention.install(model.network)


@torch.inference_mode()
def _measured(model: LanguageModel, plain: list[torch.Tensor]) -> float:
    rows = _rows(model)
    model.allocate(len(SLOTS), rows.num_positions)
    may_pack, model.packs_rows = model.packs_rows, False  # rectangles first: packing is compared with them
    model.prefill(SLOTS, rows.prompts)
    junk_BJ, real_BJ = to_device(rows.junk, model.device), to_device(rows.real, model.device)
    model.forward(rows.starts, junk_BJ, _every(junk_BJ), slots=SLOTS)
    for _ in range(_num_times(model)):
        found_BJV = model.forward(rows.starts, real_BJ, _every(real_BJ), slots=SLOTS)
    if may_pack:
        model.packs_rows = _packs(model, rows.starts, real_BJ, found_BJV)
    model.cache = None
    return relative_deviation(list(found_BJV), plain)


def _packs(model: LanguageModel, starts: list[int], real_BJ: torch.Tensor, found_BJV: torch.Tensor) -> bool:
    """Tell whether ragged rows, packed end to end, get the logits they got in a rectangle."""
    model.packs_rows = True
    try:
        for _ in range(_num_times(model)):
            packed_BJV = model.forward(starts, real_BJ, _every(real_BJ), slots=SLOTS, lengths=RAGGED)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return relative_deviation(ragged(packed_BJV), ragged(found_BJV)) <= TOLERANCE[model.dtype]


def _every(token_ids_BJ: torch.Tensor) -> torch.Tensor:
    """Return the indexes of all tokens of each row."""
    return torch.arange(token_ids_BJ.shape[1], device=token_ids_BJ.device).expand_as(token_ids_BJ)


def _num_times(model: LanguageModel) -> int:
    """Return how often to run a forward to see all of its ways: plain, recorded, replayed."""
    return 1 if model.graphs is None else 3
