"""Supported models: helpful errors from the configuration, before the probe decides by measurement.

These checks only make errors clearer and earlier (before any weight is read); the probe decides
(`decoding/network/probe.py`). A draft must also share the target's vocabulary.
"""

import inspect
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, Cache, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from decoding.checkpoint.adapter import CONFIG as ADAPTER_CONFIG
from decoding.checkpoint.adapter import base_of, is_adapter, merged_folder
from decoding.checkpoint.gguf_file import unpacked_folder
from decoding.checkpoint.model_files import check_kind, check_links, check_weights
from decoding.checkpoint.quantized.packed_format import packed_layout
from decoding.checkpoint.quantized.words import without_format
from decoding.states.model_file import asks_cache_for_states, keeps_states_outside_modules, may_keep_states

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
# What transformers raises for a folder that it cannot load: a value or a package is missing, or has an odd type.
LOAD_FAILURES = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, StrictDataclassError)
# And what comes of a network of which some sizes or options do not fit together.
NETWORK_FAILURES = (*LOAD_FAILURES, RuntimeError, IndexError, AssertionError, ArithmeticError)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_ATTENTION_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_LAYER_TYPES_WITH_ROLLBACK = _ATTENTION_TYPES | {"moe", "mlp", "dense", "sparse"}
_LAYER_TYPES_WITH_STATES = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "attention", "recurrent"}
_ROPE_TYPES_THAT_SEE_THE_BATCH = {"longrope", "dynamic"}


def model_folder(path: str) -> str:
    """Return `path` if it is a folder, else that of the downloaded hub model; of an adapter, that of the merged model.

    Of a GGUF file it is the folder of the dequantized model. A `~` is expanded. Raises ValueError if there is no such
    folder, file or hub model, if a file in it is a link to nothing, for an adapter that cannot be merged, and for a
    GGUF file that cannot be read.
    """
    folder = _downloaded(path)
    return merged_folder(Path(folder), model_folder) if is_adapter(Path(folder)) else folder


def adapter_base(path: str) -> str:
    """Return the folder of the model that the adapter in `path`, a folder or a hub name, is merged into.

    Raises ValueError if there is no adapter, or none that can be merged as far as its configuration tells.
    """
    folder = Path(_downloaded(path))
    if not is_adapter(folder):
        what = "a whole model" if (folder / "config.json").is_file() else f"no {ADAPTER_CONFIG}"
        raise ValueError(f"{path!r} holds {what}; expected the folder of a LoRA adapter, as PEFT saves it")
    return base_of(folder, model_folder)


def _downloaded(path: str) -> str:
    folder = os.path.expanduser(path)
    check_links(Path(folder))
    if Path(folder).is_dir():
        return folder
    if Path(folder).is_file():
        return unpacked_folder(Path(folder), check_config)
    if path.endswith(".gguf"):
        raise ValueError(f"no model at {path!r}: there is no such file")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ValueError(f"no model at {path!r}: it is not a folder, and not a hub name of the form 'owner/name'")
    try:
        folder = str(snapshot_download(path, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError as error:
        raise ValueError(
            f"no folder {path!r} here, and the hub, which may have a model of that name, cannot be reached "
            f"({in_one_line(error.__cause__ or error)}); connect this machine, or name a folder or a .gguf file"
        ) from error
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ValueError(
            f"no folder {path!r} here, and no hub model of that name can be downloaded: {in_one_line(error)}"
        ) from error
    check_links(Path(folder))
    return folder


def load_config(path: str) -> PretrainedConfig:
    """Load the configuration of the causal language model in `path`; raise a ValueError if it cannot be run.

    Of a folder with packed weights it is that of the dequantized model.
    """
    check_kind(Path(path))
    config = read_config(path)
    check_config(config, path)
    check_weights(Path(path))
    return config if packed_layout(config) is None else without_format(config)


def read_config(path: str) -> PretrainedConfig:
    """Read the configuration of the model in `path`, whatever its kind; raise a ValueError if transformers cannot."""
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except LOAD_FAILURES as error:
        raise ValueError(f"cannot read the configuration of the model at {path!r}: {in_one_line(error)}") from error


def in_one_line(error: BaseException) -> str:
    """Return the first paragraph of an exception's message, after its type where the message may say too little."""
    said = " ".join(str(error).strip().partition("\n\n")[0].split())
    return said if isinstance(error, OSError | ValueError | ImportError) else f"{type(error).__name__}: {said}"


def check_config(config: PretrainedConfig, path: str) -> None:
    """Raise a ValueError that says why a model of this configuration cannot be run, where that can be told from it."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise ValueError(f"{path!r} is an encoder-decoder model ({name}); Dray runs decoder-only language models")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        remote = "; Dray never runs a model's own code (auto_map)" if getattr(config, "auto_map", None) else ""
        raise ValueError(f"{path!r} ({name}) is not a causal language model that transformers knows{remote}")
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    foreign = sorted(layer_types - _LAYER_TYPES_WITH_ROLLBACK - _LAYER_TYPES_WITH_STATES)
    if foreign:
        raise ValueError(
            f"{path!r} ({name}) has layers of type {', '.join(foreign)}, which cannot be rolled back to an earlier "
            "token here; speculative decoding needs that, so choose a target and a draft with other layers"
        )
    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(name)
    if isinstance(named, str) and not may_keep_states(type(config), named):
        return
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    asks_for_states = asks_cache_for_states(model_class)
    if asks_for_states and not hasattr(Cache, "get_conv_state"):
        raise ValueError(
            f"{path!r} ({name}) has layers with states, which Dray reads by calls that transformers has from 5.21 on, "
            f"and this is transformers {transformers.__version__}; update it, or choose a model with attention alone"
        )
    if asks_for_states and keeps_states_outside_modules(model_class):
        raise ValueError(
            f"{path!r} ({name}) keeps states in functions of its model file that are no methods of a layer, where Dray "
            "does not find them; choose a model of another architecture"
        )
    if getattr(model_class, "_is_stateful", False) and not asks_for_states:
        raise ValueError(
            f"{path!r} ({name}) has a recurrent state that its code keeps outside of the cache, so that it cannot be "
            "rolled back to an earlier token; speculative decoding needs that, so choose another target and draft"
        )


def max_positions(config: PretrainedConfig) -> int | None:
    """Return the longest sequence the model may see, or None if its configuration sets no limit.

    Some rope types choose their frequencies from the longest row of a *batch* beyond a certain length. The limit is
    that length: beyond it, a row's text would depend on its neighbours.
    """
    text_config = config.get_text_config()
    limit: int | None = getattr(text_config, "max_position_embeddings", None)
    limit = None if limit is not None and limit < 0 else limit  # XLNet's -1
    for parameters in rope_parameters(text_config):
        if parameters.get("rope_type") in _ROPE_TYPES_THAT_SEE_THE_BATCH:
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(text_config, "original_max_position_embeddings", None) or limit
            limit = original if limit is None or original is None else min(limit, original)
    return limit


def check_same_vocabulary(target: str, draft: str, target_size: int, draft_size: int) -> None:
    """Raise a ValueError naming the first token id that means something else to the draft than to the target.

    One may know more ids than the other (padding, added tokens): the draft never proposes an id the target lacks.
    Without a tokenizer beside both models only the sizes can be compared, and they must be equal.
    """
    target_tokens, draft_tokens = _tokens_by_id(target), _tokens_by_id(draft)
    if target_tokens is None or draft_tokens is None:
        if target_size != draft_size:
            raise ValueError(
                f"the draft {draft!r} has {draft_size} token ids and the target {target!r} has {target_size}, and "
                "without a tokenizer in both folders they cannot be compared; put the tokenizer files there"
            )
        return
    for token_id in sorted(target_tokens.keys() & draft_tokens.keys()):
        if target_tokens[token_id] != draft_tokens[token_id]:
            raise ValueError(
                f"the draft {draft!r} does not share the vocabulary of the target {target!r}: token id {token_id} is "
                f"{draft_tokens[token_id]!r} to the draft and {target_tokens[token_id]!r} to the target; "
                "take a draft of the target's family, or map its tokens by their texts "
                "(models.draft_vocabulary 'map'), or take no draft model (engine.drafter 'suffix')"
            )


def cache_argument(network: torch.nn.Module) -> str:
    """Return the name under which a network takes its cache, and under which its output has it."""
    return "past_key_values" if "past_key_values" in inspect.signature(network.forward).parameters else "cache_params"


def rope_parameters(text_config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the parameters of rotary positions, of each kind of layers that has its own."""
    parameters = getattr(text_config, "rope_parameters", None) or getattr(text_config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _tokens_by_id(path: str) -> dict[int, str] | None:
    if not any((Path(path) / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return None
    except Exception as error:  # those of the tokenizers library have no type of their own
        raise ValueError(
            f"the tokenizer of {path!r} cannot be loaded to compare vocabularies: {in_one_line(error)}; mend that, or "
            "use drafter 'ngram', which needs no second model"
        ) from error
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}
