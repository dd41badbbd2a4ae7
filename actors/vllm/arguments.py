"""The arguments of a vLLM engine, from the settings of a generator: by name, and refused by name where vLLM has none.

Nothing here loads a model. `check` runs in the driver, before any actor starts.
"""

import ast
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from actors.settings import GeneratorSettings
from actors.vllm.draft_method import method_of_head
from decoding.checkpoint.loading import cache_of
from decoding.checkpoint.supported import max_positions, read_config
from decoding.choices import NEED_A_HEAD, NEED_A_MODEL, OWN_HEAD
from decoding.engine.options import settle_max_model_len
from decoding.sampling_params import SamplingParams

INSTALL = "install it with pip install -e '.[vllm]' -c constraints-vllm.txt (make setup-vllm on a machine without GPUs)"
# Its core runs in the actor's process, so that no other can outlive it.
_IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads go where Ray lets this process run
}
# Arguments of vLLM that Dray sets itself, and the field that says what they should be.
_OURS = {
    "model": "models.target",
    "tokenizer": "models.tokenizer",
    "skip_tokenizer_init": "models.tokenizer",
    "structured_outputs_config": "sampling.structured, whose forms are for vLLM's backend 'guidance'",
    "reasoning_parser": "chat.reasoning",
    "reasoning_parser_plugin": "chat.reasoning",
    "dtype": "models.dtype",
    "seed": "run.seed",
    "max_model_len": "engine.max_model_len",
    "max_num_seqs": "engine.num_slots",
    "spec_method": "engine.vllm.speculative_config",
    "spec_model": "engine.vllm.speculative_config",
    "spec_tokens": "engine.vllm.speculative_config",
    "enable_lora": "engine.vllm.lora",
    "generation_config": "sampling.from_model",
    "override_generation_config": "sampling",
}
# Those that would change what Dray reads from vLLM, or run it in another way than in one actor.
_REFUSED = {
    "hf_token": "the models are folders by then, and a secret would stand in the run's files",
    "model_weights": "the weights are those of models.target",
    "hf_config_path": "the configuration is that of models.target",
    "load_format": "the weights are those of models.target",
    "trust_remote_code": "Dray never runs code from a model's repository",
    "logprobs_mode": "logprobs are those of the raw logits with every engine",
    "per_request_spec_decode_metrics": "Dray reads it for the columns of counts",
    "disable_log_stats": "Dray has metrics of its own",
    "runner": "Dray only generates",
    "convert": "Dray only generates",
    "stream_interval": "Dray counts the rounds",
    "data_parallel_size": "use actors.min_actors and actors.max_actors",
    "nnodes": "an engine is on one node, in one actor",
    "distributed_executor_backend": "an engine is on one node, in one actor",
}
_PROMPT_LOOKUP = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
_WITHOUT_DRAFTS = ("min_p", "logit_bias")  # sampling parameters that vLLM does not have beside drafts
_MAX_TEMPERATURE = 2.0
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM reserves room for
_VARIABLES = ("VLLM_", "CUDA_", "NCCL_", "TORCH_", "OMP_", "HIP_")  # beginnings of those that may be set
_SECRET = re.compile("API_KEY|SECRET|PASSWORD|CREDENTIAL|_TOKEN$")  # in the name of a variable
_PLACE = re.compile("_IP$|_PORT$|_ROOT$|_DIR$|_PATH$|_FOLDER$")  # differs between machines, and changes no text
_DEFAULT_SHARE = 0.92  # of a GPU's memory, by vLLM
_CACHE_ROOM = 1.25  # a cache in blocks needs more than its tokens


def check(settings: GeneratorSettings) -> None:
    """Raise ValueError for what vLLM cannot do with these settings, as far as it is known before a model is loaded."""
    if find_spec("vllm") is None:
        raise ValueError(f"engine.backend is 'vllm', but vLLM is not installed in this environment; {INSTALL}")
    _check_names(settings)
    _check_variables(settings.engine.vllm_env)
    if settings.engine.pick_drafter(settings.models.draft) == "suffix" and find_spec("arctic_inference") is None:
        raise ValueError(
            "engine.drafter is 'suffix', for which vLLM needs the package arctic-inference; install it, or use 'ngram'"
        )
    config = read_config(settings.models.target)
    has_drafts, vocab_size = speculative_config(settings) is not None, config.get_text_config().vocab_size
    if problem := problem_with(settings.sampling, has_drafts, vocab_size):
        raise ValueError(problem)
    settle_max_model_len(settings.engine.max_model_len, max_positions(config))
    if settings.engine.vllm.get("lora") is not None:
        lora_rank(settings)


def _check_names(settings: GeneratorSettings) -> None:
    names = {"lora", *argument_names()}
    for name in settings.engine.vllm:
        if name in _OURS:
            raise ValueError(f"engine.vllm.{name} is set by Dray; say it by {_OURS[name]}")
        if name in _REFUSED:
            raise ValueError(f"engine.vllm.{name} cannot be set: {_REFUSED[name]}")
        if name not in names:
            near = get_close_matches(name, names, n=1, cutoff=0.6)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"engine.vllm.{name} is not an argument of vLLM's engine (EngineArgs){meant}")
    if "speculative_config" in settings.engine.vllm and settings.engine.drafter is not None:
        raise ValueError(
            f"engine.drafter is {settings.engine.drafter!r} and engine.vllm.speculative_config says how to draft, too; "
            "drop one of them"
        )
    if "speculative_config" in settings.engine.vllm and settings.models.draft is not None:
        raise ValueError(
            "models.draft and engine.vllm.speculative_config both say what drafts; name the model in one of them"
        )


def _check_variables(variables: Mapping[str, str]) -> None:
    known = (_folder() / "envs.py").read_text(encoding="utf-8")
    for name in variables:
        if name in _IN_PROCESS:
            raise ValueError(f"engine.vllm_env sets {name}, but vLLM's core runs in the actor's process; leave it out")
        if _SECRET.search(name):
            raise ValueError(
                f"engine.vllm_env sets {name}, and a secret would stand in the run's files; set it on the machines"
            )
        if not name.startswith(_VARIABLES):
            raise ValueError(
                f"engine.vllm_env sets {name}; only names beginning with {', '.join(_VARIABLES)} are taken"
            )
        if name.startswith("VLLM_") and f'"{name}"' not in known:
            raise ValueError(f"engine.vllm_env sets {name}, which this vLLM does not read")


def check_gpus(settings: GeneratorSettings, section: str, num_gpus: float) -> None:
    """Raise ValueError if the GPUs that an actor holds, by `section`, are not those that vLLM's processes take."""
    if settings.models.device == "cpu":
        return
    wanted = num_processes(settings)
    share = settings.engine.vllm.get("gpu_memory_utilization", _DEFAULT_SHARE)
    if num_gpus < 1 and wanted == 1 and share > num_gpus:
        raise ValueError(
            f"{section}.num_gpus is {num_gpus:g} and engine.vllm.gpu_memory_utilization {share:g}: an engine would "
            "take more of the GPU's memory than its share; lower the second"
        )
    if num_gpus >= 1 and num_gpus != wanted:
        raise ValueError(
            f"{section}.num_gpus is {num_gpus:g}, and vLLM runs {wanted} processes (engine.vllm.tensor_parallel_size x "
            f"pipeline_parallel_size), each on a GPU of the actor; set {section}.num_gpus to {wanted}"
        )


def num_processes(settings: GeneratorSettings) -> int:
    """Return how many processes of vLLM share out a model."""
    arguments = settings.engine.vllm
    return int(arguments.get("tensor_parallel_size", 1)) * int(arguments.get("pipeline_parallel_size", 1))


def problem_with(params: SamplingParams, has_drafts: bool, vocab_size: int) -> str | None:
    """Return which of these sampling parameters vLLM does not have; None if it has all of them."""
    if params.temperature > _MAX_TEMPERATURE:
        return f"sampling.temperature is {params.temperature:g}, and vLLM takes at most {_MAX_TEMPERATURE:g}"
    if foreign := [token_id for token_id in params.stop_token_ids if token_id >= vocab_size]:
        return f"sampling.stop_token_ids names {foreign[0]}, and the target has {vocab_size} ids"
    if has_drafts:
        for name in _WITHOUT_DRAFTS:
            if getattr(params, name) != getattr(SamplingParams(), name):
                return (
                    f"sampling.{name} does not work in vLLM beside drafts; use engine.drafter 'none', or "
                    "engine.backend 'dray', which has it"
                )
    return None


def argument_names() -> set[str]:
    """Return the names that vLLM's EngineArgs has, from its source: importing it takes many seconds in a driver."""
    tree = ast.parse((_folder() / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    (arguments,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "EngineArgs")
    return {
        each.target.id
        for each in arguments.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and not each.target.id.startswith("_")
    }


def _folder() -> Path:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def machine_variables() -> dict[str, str]:
    """Return the variables of vLLM that this machine sets, but no secrets and nothing that only names a place.

    They are those of the first call, since vLLM sets some itself when it is loaded.
    """
    names = [
        name for name in os.environ if name.startswith("VLLM_") and not (_SECRET.search(name) or _PLACE.search(name))
    ]
    own = {**_ENVIRONMENT, **_IN_PROCESS}
    return {name: os.environ[name] for name in names if own.get(name) != os.environ[name]}


def prepare_environment(variables: Mapping[str, str]) -> None:
    """Set the environment variables that vLLM reads when it is imported; these, then what is set, then Dray's own."""
    machine_variables()
    os.environ.update({**variables, **_IN_PROCESS})
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def engine_arguments(settings: GeneratorSettings, on_processor: bool) -> dict[str, Any]:
    """Return what vLLM's EngineArgs gets; on a processor also how much memory its slots need."""
    models, options = settings.models, settings.engine
    config = read_config(models.target)
    max_model_len = settle_max_model_len(options.max_model_len, max_positions(config))
    arguments: dict[str, Any] = {
        "model": models.target,
        "tokenizer": models.tokenizer or models.target,
        "structured_outputs_config": {"backend": "guidance"},  # by the tokenizer; texts come from Dray's own codec
        "dtype": models.dtype,
        "seed": settings.seed % 2**32,
        "max_model_len": max_model_len,
        "max_num_seqs": settings.most_slots,
        "speculative_config": (drafting := speculative_config(settings)),
        "per_request_spec_decode_metrics": "none" if drafting is None else "summary",
        "distributed_executor_backend": "mp" if num_processes(settings) > 1 else "uni",
        "generation_config": "vllm",  # nothing of that file is applied unasked: end tokens are named row by row
        "disable_log_stats": True,
    }
    if on_processor and not {"kv_cache_memory_bytes", "gpu_memory_utilization"} & options.vllm.keys():
        with suppress(ValueError, AttributeError, KeyError, TypeError):  # then vLLM takes its own share of the memory
            dtype = "float32" if models.dtype == "auto" else models.dtype
            caches = cache_of(config, dtype, options.slots, max_model_len)
            if drafting is not None and (draft := drafting.get("model")):
                caches += cache_of(read_config(draft), dtype, options.slots, max_model_len)
            arguments["kv_cache_memory_bytes"] = int(_CACHE_ROOM * caches) + 2**27
    given = {name: value for name, value in options.vllm.items() if name != "lora"}
    if options.vllm.get("lora") is not None:
        given |= {"enable_lora": True, "max_lora_rank": given.get("max_lora_rank", lora_rank(settings))}
    return arguments | given


def speculative_config(settings: GeneratorSettings) -> dict[str, Any] | None:
    """Return how vLLM drafts: as engine.vllm says, or by Dray's names for it; None if it does not.

    Raises ValueError for a draft head, which vLLM takes in its own words.
    """
    options, draft = settings.engine, settings.models.draft
    if "speculative_config" in options.vllm:
        config: dict[str, Any] | None = options.vllm["speculative_config"]
        return config
    drafter = options.pick_drafter(draft)
    if drafter == "none":
        return None
    if drafter in NEED_A_HEAD and draft not in (None, OWN_HEAD):
        said = {**method_of_head(draft), "model": draft, "num_speculative_tokens": 3}
        raise ValueError(
            f"models.draft ({draft}) is a draft head; for vLLM leave it out and say engine.vllm.speculative_config "
            f"{yaml.safe_dump(said, default_flow_style=True, sort_keys=False, width=float('inf')).strip()}"
        )
    if drafter == "mtp":
        method: dict[str, Any] = {"method": drafter}
    elif drafter in NEED_A_MODEL:
        method = {"method": "draft_model", "model": draft}
    else:
        method = dict(_PROMPT_LOOKUP) if drafter == "ngram" else {"method": drafter}
    return {**method, "num_speculative_tokens": options.num_speculative_tokens}


def without_drafts(settings: GeneratorSettings) -> GeneratorSettings:
    """Return the settings of the target alone, also where engine.vllm says how to draft."""
    vllm = {name: value for name, value in settings.engine.vllm.items() if name != "speculative_config"}
    return replace(settings, engine=replace(settings.engine, drafter="none", vllm=vllm))


def lora_rank(settings: GeneratorSettings) -> int:
    """Return the room that the adapter in engine.vllm.lora needs, as a rank. Raises ValueError if there is none."""
    try:
        path = Path(settings.engine.vllm["lora"]) / "adapter_config.json"
        rank = int(json.loads(path.read_text(encoding="utf-8"))["r"])
        return next(room for room in _LORA_RANKS if room >= rank)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ValueError(
            f"engine.vllm.lora is {settings.engine.vllm['lora']!r}, which is not the folder of a LoRA adapter "
            f"(adapter_config.json with a rank r): {type(error).__name__}: {error}"
        ) from error
