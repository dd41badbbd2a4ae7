"""The measurement that decides whether a model may run: our slots against the model's own plain forward.

Ragged rows are prefilled into scattered slots, junk tokens are verified and rolled back, and real tokens follow. The
logits of the real tokens must be those of one plain forward with transformers' own eager attention. Whether rows may be
packed is measured as well; a model that does not bear it gets rectangles.
"""

import logging

import torch

from decoding import attention
from decoding.model import LanguageModel

_PROMPT_LENGTHS = (5, 1, 41)  # the last one longer than any block of positions that a kernel takes at once
_SLOTS = (2, 0, 1)
_NUM_JUNK = 4
_NUM_REAL = 3
_RAGGED = (3, 1, 2)
# Measured over 104 model classes in float32: 2e-7 to 2e-6. The margin is two orders of magnitude, a wrong mask is 1e-2.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
# Close calls (`scoring.CLOSE_CALL`) count on float32 being as good as this, whichever code runs. Measured: below 2e-6.
FUSED_TOLERANCE = {torch.float32: 1e-5}
_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)

_log = logging.getLogger(__name__)


def check_model(model: LanguageModel, name: str) -> float:
    """The relative deviation found, or a ValueError that quotes it. The model's cache is gone afterwards.

    A network that can be made faster (`LanguageModel.speed_up`) is then made so, and measured again, against what it
    computed before anything was changed.
    """
    try:
        plain = _plain_logits(model)
    except _FAILURES as error:
        raise ValueError(f"{name!r} cannot run: {type(error).__name__}: {error}") from error
    deviation = _checked(model, name, plain)
    packs_rows = model.packs_rows
    model.speed_up()
    if model.fused is not None:
        fused_deviation = _fused_deviation(model, plain)
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


def measure_deviation(model: LanguageModel) -> float:
    """Largest difference of logits, relative to the largest logit."""
    return _measured(model, _plain_logits(model))


def _fused_deviation(model: LanguageModel, plain: list[torch.Tensor]) -> float:
    """Of the fused network; infinite if it fails."""
    try:
        return _measured(model, plain)
    except _FAILURES:
        return float("inf")


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


def _tokens(model: LanguageModel) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """Rows of real tokens, rows of junk, and how many of the real ones are prompt."""
    generator = torch.Generator().manual_seed(0)
    prompt_lengths = _prompt_lengths(model)
    length = max(prompt_lengths) + _NUM_REAL
    tokens_BL = torch.randint(model.vocab_size, (len(_SLOTS), length), generator=generator).to(model.device)
    junk_BT = torch.randint(model.vocab_size, (len(_SLOTS), _NUM_JUNK), generator=generator).to(model.device)
    return tokens_BL, junk_BT, prompt_lengths


@torch.inference_mode()
def _plain_logits(model: LanguageModel) -> list[torch.Tensor]:
    """Each row's logits [_NUM_REAL, V] by one forward of the network itself, with transformers' own eager attention."""
    tokens_BL, _, prompt_lengths = _tokens(model)
    attention.uninstall(model.network)
    try:
        return [
            model.network(input_ids=tokens_L[None, : n - 1 + _NUM_REAL], use_cache=False).logits[0, n - 1 :]
            for tokens_L, n in zip(tokens_BL, prompt_lengths, strict=True)
        ]
    finally:
        attention.install(model.network)


@torch.inference_mode()
def _measured(model: LanguageModel, plain: list[torch.Tensor]) -> float:
    tokens_BL, junk_BT, prompt_lengths = _tokens(model)
    model.allocate(len(_SLOTS), max(prompt_lengths) + _NUM_JUNK)
    may_pack, model.packs_rows = model.packs_rows, False  # rectangles first: they are what packing is measured against
    prompts = [row[: n - 1] for row, n in zip(tokens_BL.tolist(), prompt_lengths, strict=True)]
    model.prefill(_SLOTS, prompts)
    starts = [n - 1 for n in prompt_lengths]
    every_BT = torch.arange(_NUM_JUNK, device=model.device).expand(len(_SLOTS), -1)
    model.forward(starts, junk_BT, every_BT, slots=_SLOTS)
    real_BT = torch.stack([row[s : s + _NUM_REAL] for row, s in zip(tokens_BL, starts, strict=True)])
    for _ in range(_num_times(model)):
        found_BTV = model.forward(starts, real_BT, every_BT[:, :_NUM_REAL], slots=_SLOTS)
    if may_pack:
        model.packs_rows = _packs(model, starts, real_BT, found_BTV)
    model.cache = None
    size = max(float(plain_TV.abs().max()) for plain_TV in plain)
    difference = max(
        float((found_TV - plain_TV).abs().max()) for found_TV, plain_TV in zip(found_BTV, plain, strict=True)
    )
    return difference / size if size else float("inf")


def _packs(model: LanguageModel, starts: list[int], real_BT: torch.Tensor, found_BTV: torch.Tensor) -> bool:
    """Whether ragged rows, packed end to end, get the logits they got in a rectangle."""
    every_BT = torch.arange(_NUM_REAL, device=model.device).expand(len(_SLOTS), -1)
    model.packs_rows = True
    try:
        for _ in range(_num_times(model)):
            packed_BTV = model.forward(starts, real_BT, every_BT, slots=_SLOTS, lengths=_RAGGED)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    differences = [
        float((packed_TV[:length] - found_TV[:length]).abs().max())
        for packed_TV, found_TV, length in zip(packed_BTV, found_BTV, _RAGGED, strict=True)
    ]
    return max(differences) <= TOLERANCE[model.dtype] * float(found_BTV.abs().max())


def _num_times(model: LanguageModel) -> int:
    """How often to run a forward to see all of its ways: as it is, recorded, replayed."""
    return 1 if model.graphs is None else 3


def _prompt_lengths(model: LanguageModel) -> tuple[int, ...]:
    """`_PROMPT_LENGTHS`, the last one longer than a window that the model file cuts by itself (GPT-Neo: `window_size`).

    Windows under other names go through transformers' mask rules, which `attention` evaluates for each row.
    """
    window = getattr(model.network.config.get_text_config(), "window_size", None)
    reach = max(window, 0) if isinstance(window, int) else 0
    if model.max_positions is not None:
        reach = max(0, min(reach, model.max_positions - max(_PROMPT_LENGTHS) - _NUM_JUNK))
    return (*_PROMPT_LENGTHS[:-1], _PROMPT_LENGTHS[-1] + reach)
