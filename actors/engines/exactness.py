"""Exactness: what may be said of the texts of a run, and why no more than that. Nothing here needs torch."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

# proved: the texts are the target's own, token for token, whatever drafts, batch or crash (docs/promise.md).
# batch-invariant: the engine says that it computes a row's logits alike in any batch, and nothing more is claimed.
# no: a row that is written again may have another text.
Exactness = Literal["proved", "batch-invariant", "no"]
_WHY = {
    "rejection": "a row that is written again may have another text, also of the target's distribution "
    "(verification: rejection)",
    "unadjusted": "at temperatures above 0 the texts do not have the target's distribution (verification: unadjusted)",
    "vllm": "vLLM may write another text for a row in another batch (engine.backend: vllm)",
}
_BY_ROUNDING = "a row that is written again may have another text, where rounding decides between its best tokens"


def why_inexact(verification: str) -> str:
    """Return in words why the exactness is 'no', for a reader; `verification` is as in the identity of a run."""
    return _WHY.get(verification, _BY_ROUNDING)


def exactness_found(claimed: Exactness, verification: str, engines: Iterable[Mapping[str, Any]]) -> Exactness:
    """Return what may be said once the parts are written, whose footers describe these engines."""
    found = list(engines)
    if claimed != "no" or verification in ("rejection", "unadjusted") or not found:
        return claimed
    is_alike = len({engine.get("kernels") for engine in found}) == 1  # others round otherwise
    return "batch-invariant" if is_alike and all(engine.get("is_batch_invariant") for engine in found) else "no"
