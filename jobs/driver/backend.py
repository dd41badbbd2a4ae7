"""Backend: which engine a run has, and what that engine promises of its texts."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from actors.settings import GeneratorSettings

Exactness = Literal["proved", "batch-invariant", "no"]
_INVARIANCE = "VLLM_BATCH_INVARIANT"
_WHY = {
    "rejection": "a row that is written again may have another text, also of the target's distribution "
    "(verification: rejection)",
    "unadjusted": "at temperatures above 0 the texts do not have the target's distribution (verification: unadjusted)",
    "vllm": "vLLM may write another text for a row in another batch (engine.backend: vllm)",
}
_BY_ROUNDING = "a row that is written again may have another text, where rounding decides between its best tokens"


def exactness(settings: GeneratorSettings) -> Exactness:
    """Return what may be said of a run's texts before its engines are loaded.

    proved: they are the target's own, token for token, whatever drafts, batch or crash (docs/promise.md).
    batch-invariant: the engine says that it computes a row's logits alike in any batch, and nothing more is claimed.
    no: a row that is written again may have another text.
    """
    engine, models = settings.engine, settings.models
    if engine.backend == "vllm":  # its switch has an effect on GPUs alone
        has_switch = engine.vllm_env.get(_INVARIANCE) == "1"
        return "batch-invariant" if has_switch and models.device == "cuda" else "no"
    return "proved" if engine.is_repeatable and settings.models.dtype == "float32" else "no"


def refuse_if_inexact(settings: GeneratorSettings) -> None:
    """Raise ValueError if `exactness` is 'no' for good, whatever an engine measures when it is loaded."""
    engine = settings.engine
    if engine.backend == "vllm":
        has_switch = engine.vllm_env.get(_INVARIANCE) == "1" and settings.models.device != "cpu"
        remedy = f"set {_INVARIANCE} to '1' in engine.vllm_env and run on a GPU, or take engine.backend 'dray'"
    else:
        has_switch, remedy = engine.is_repeatable, "set engine.verification to 'coupled'"
    if not has_switch:
        why = why_inexact("vllm" if engine.backend == "vllm" else engine.verification)
        raise ValueError(f"run.exact is 'required', but {why}; {remedy}, or set run.exact to 'any'")


def why_inexact(verification: str) -> str:
    """Return in words why `exactness` is 'no', for a reader; `verification` is as in the identity of a run."""
    return _WHY.get(verification, _BY_ROUNDING)


def lossy(settings: GeneratorSettings) -> str:
    """Return in words what is wrong with the texts of a lossy verification; nothing for a lossless one."""
    engine = settings.engine
    return _WHY["unadjusted"] if engine.backend == "dray" and engine.verification == "unadjusted" else ""


def exactness_found(claimed: Exactness, verification: str, engines: Iterable[Mapping[str, Any]]) -> Exactness:
    """Return what may be said once the parts are written, whose footers describe these engines."""
    found = list(engines)
    if claimed != "no" or verification in ("rejection", "unadjusted") or not found:
        return claimed
    is_alike = len({engine.get("kernels") for engine in found}) == 1  # others round otherwise
    return "batch-invariant" if is_alike and all(engine.get("is_batch_invariant") for engine in found) else "no"


def describe_engine(settings: GeneratorSettings) -> str:
    """Return which engine it is, how it drafts, and what it promises, for a reader."""
    engine = settings.engine
    drafter = engine.pick_drafter(settings.models.draft)
    if engine.backend == "dray":
        exact = (
            "" if settings.models.dtype == "float32" or settings.models.device == "cpu" else f", exact {engine.exact}"
        )
        warning = lossy(settings)
        return f"dray, drafter {drafter}, {engine.verification}{exact}{f'; {warning}' if warning else ''}"
    from actors.identity import vllm_version  # here, since it needs torch, which jobs.verify and jobs.report do not

    drafts = "as engine.vllm.speculative_config says" if "speculative_config" in engine.vllm else f"drafter {drafter}"
    return f"vLLM {vllm_version()}, {drafts}; exact: {exactness(settings)}"
