"""Backend: an engine as all rooms see it, from its configuration to the process that has loaded it.

What needs torch or vLLM is imported where it is called, since a configuration is checked without either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from actors.settings import EngineSettings, GeneratorSettings
from decoding.choices import LOSSY, NEED_A_MODEL, OWN_HEAD, TEXT_DEPENDS_ON_DRAFT, TEXT_IS_THE_TARGETS

if TYPE_CHECKING:
    from actors.drafts.remote_drafter import DraftLinks
    from actors.engines.loaded import Loaded
    from decoding.sampling_params import SamplingParams


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


class Backend:
    """The engine that the settings of a run name. These are the answers of Dray's own; another one has others."""

    tells_rounds = True  # whether it tells the tokens that it rejects, round by round
    scores_rows = True  # whether it does task 'score'
    plans_memory = True  # whether a plan can say what its models take, and what its draft is
    why_no_adapters = ""  # why an endpoint cannot serve adapters beside its model
    remedy = "set engine.verification to 'coupled'"  # for texts that are not exact

    def __init__(self, settings: GeneratorSettings) -> None:
        """Answer for these settings."""
        self.settings = settings
        self.verification: str = settings.engine.verification  # as the identity of a run names it
        # Whether a row that is written twice has the same tokens both times, whatever drafts for it.
        self.is_repeatable = self.verification in TEXT_IS_THE_TARGETS
        # What may be said of texts before engines are loaded, and whether a loaded one may say more.
        self.exactness: Exactness = "proved" if self.is_repeatable and settings.models.dtype == "float32" else "no"
        self.may_be_exact = self.is_repeatable
        # What is wrong with the texts of a lossy verification, in words; nothing for a lossless one.
        self.lossy = why_inexact(self.verification) if self.verification in LOSSY else ""

    def check(self) -> None:
        """Raise ValueError for what these settings ask of an engine that does not have it. No model is looked at."""
        for name in ("vllm", "vllm_env"):
            if value := getattr(self.settings.engine, name):
                raise ValueError(f"engine.{name} is {value!r}, which only engine.backend 'vllm' reads; drop one")
        models = self.settings.models
        if self.settings.has_draft_actors:
            self.settings.drafts.check_together(self.settings.engine, models.draft, models.draft_vocabulary)

    def check_models(self) -> None:
        """Check models and settings as the engine does when it loads weights, as far as possible without them."""
        from actors.engines.model_check import check_models

        check_models(self.settings)

    def check_gpus(self, section: str, num_gpus: float) -> None:
        """Raise ValueError if the engine cannot use the GPUs that an actor holds, as `section` says."""

    def problem_with(self, params: SamplingParams, vocab_size: int) -> str | None:
        """Return which of a row's parameters the engine does not have; None if it has all of them."""
        return None

    def settled_engine(self) -> EngineSettings:
        """Return the settings of the engine with absolute folders, as actors may start elsewhere."""
        return self.settings.engine

    def settled_dtype(self, target: str, device: str) -> str:
        """Return the dtype that `auto` means for the model in this folder."""
        from decoding.checkpoint.fp8_format import fp8_format
        from decoding.checkpoint.supported import load_config

        config = load_config(target)
        return dtype_of(config) if device != "cpu" or fp8_format(config) is not None else "float32"

    @property
    def why_draft_stays(self) -> str | None:
        """Why the draft of a run with these settings cannot be replaced; None if it can."""
        drafter = self.settings.engine.pick_drafter(self.settings.models.draft)
        if self.settings.turns:
            return "several drafters take turns, and which draft is to be replaced is not said"
        if not self.is_repeatable:
            return (
                f"engine.verification is {self.verification!r}, under which the text depends on the draft; only "
                "under 'coupled' it may be replaced"
            )
        if drafter not in NEED_A_MODEL:
            return f"the drafter is {drafter!r}, which has no draft model or head to replace"
        if self.settings.models.draft == OWN_HEAD:
            return "the draft is the target's own head (models.draft mtp), which is replaced with its target alone"
        return None

    @property
    def why_drafts_are_shared(self) -> str | None:
        """Why a request could be shown drafts from the texts of another API key; None if it cannot."""
        return None

    def refuse_if_inexact(self) -> None:
        """Raise ValueError if `exactness` is 'no' for good."""
        if not self.may_be_exact:
            why = why_inexact(self.verification)
            raise ValueError(f"run.exact is 'required', but {why}; {self.remedy}, or set run.exact to 'any'")

    def describe(self) -> str:
        """Return which engine it is, how it drafts, and what it promises, for a reader."""
        engine, models = self.settings.engine, self.settings.models
        exact = "" if models.dtype == "float32" or models.device == "cpu" else f", exact {engine.exact}"
        warning = f"; {self.lossy}" if self.lossy else ""
        exact += ", fused layers required" if engine.fused == "required" else ""
        drafter = "of several in turn" if self.settings.turns else engine.pick_drafter(models.draft)
        return f"dray, drafter {drafter}, {self.verification} verification{exact}{warning}"

    def identity(self, fingerprint: Callable[[str], str]) -> dict[str, Any]:
        """Return everything that decides which tokens are written after a prompt, with a given seed.

        The drafter is in it only where the text may depend on it. `fingerprint` returns the digest of a model's folder.
        """
        from pipeline.run.fingerprint import tokenizer_fingerprint

        models, engine = self.settings.models, self.settings.engine
        identity: dict[str, Any] = {
            "target": fingerprint(models.target),
            "tokenizer": tokenizer_fingerprint(models.tokenizer or models.target),
            "dtype": models.dtype,
            "verification": self.verification,
            "max_model_len": engine.max_model_len,
        }
        if not self.is_repeatable:
            identity["drafter"] = {
                "name": engine.pick_drafter(models.draft),
                "draft": fingerprint(models.draft) if models.draft not in (None, OWN_HEAD) else models.draft,
                "num_speculative_tokens": engine.num_speculative_tokens,
                "draft_length": engine.draft_length,
                **({} if models.draft_vocabulary == "same" else {"draft_vocabulary": models.draft_vocabulary}),
            }
        return identity

    def versions(self) -> dict[str, str]:
        """Return the versions of packages that this engine alone needs."""
        return {}

    def load(self, links: DraftLinks | None = None) -> Loaded:
        """Load and probe the engine; `links` lead to its draft actors. Raises ValueError with why it cannot run."""
        from actors.engines.dray import load

        return load(self.settings, links)


def dtype_of(config: Any) -> str:
    """Return the dtype that a model's configuration names."""
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def why_inexact(verification: str) -> str:
    """Return in words why the exactness is 'no', for a reader; `verification` is as in the identity of a run."""
    return _WHY.get(verification, _BY_ROUNDING)


def exactness_found(claimed: Exactness, verification: str, engines: Iterable[Mapping[str, Any]]) -> Exactness:
    """Return what may be said once the parts are written, whose footers describe these engines."""
    found = list(engines)
    if claimed != "no" or verification in TEXT_DEPENDS_ON_DRAFT or not found:
        return claimed
    is_alike = len({engine.get("kernels") for engine in found}) == 1  # others round otherwise
    return "batch-invariant" if is_alike and all(engine.get("is_batch_invariant") for engine in found) else "no"
