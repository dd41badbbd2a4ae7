"""The part of generation_config.json that changes a text, and what of it the sampling parameters here can say.

transformers' `generate` applies that file unasked. Here a text depends on the sampling parameters alone, so that the
run's configuration says all of it; only the end tokens come from the model (docs/adr/0022).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PretrainedConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What `generate` does where the file says nothing, for each of its fields that changes a text.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("do_sample", "remove_invalid_values", "renormalize_logits", "token_healing"), (None, False)),
    **dict.fromkeys(("temperature", "top_p", "typical_p", "guidance_scale"), (None, 1.0)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beams"), (None, 1.0)),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (None, 0.0)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (None, 0)),
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "suppress_tokens", "begin_suppress_tokens"), (None, [])),
    **dict.fromkeys(("top_h", "forced_bos_token_id", "forced_eos_token_id", "watermarking_config"), (None,)),
    **dict.fromkeys(("exponential_decay_length_penalty", "dola_layers", "max_new_tokens"), (None,)),
    "sequence_bias": (None, {}, []),
    "stop_strings": (None, [], ""),
}
# The name here of each of these fields that the sampling parameters have. `do_sample` is the temperature 0.
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
}
_FILLED_IN = {"top_k": 50}  # by `generate`, where the file leaves it open
_SHAPES_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # without effect in a greedy text


def end_token_ids(model: "PreTrainedModel") -> frozenset[int]:
    """Return the token ids at which `generate` ends a text of this model."""
    return _end_ids(model.generation_config)


def end_token_ids_of(folder: str, config: PretrainedConfig) -> frozenset[int]:
    """Return the token ids at which `generate` ends a text of the model in this folder, without loading it."""
    return _end_ids(generation_of(folder, config))


def generation_of(folder: str, config: PretrainedConfig) -> GenerationConfig:
    """Return the generation configuration of the model in this folder, without loading it."""
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:
        return GenerationConfig.from_model_config(config)


def _end_ids(generation: GenerationConfig | None) -> frozenset[int]:
    ids = None if generation is None else generation.eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def sampling_of(folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a model's generation_config.json says of sampling: (as sampling parameters, the fields without one).

    Fields that say what `generate` does anyway are left out. Both are empty where there is no such file. Raises
    ValueError if the file cannot be read.
    """
    if not (Path(folder) / "generation_config.json").is_file():
        return {}, {}
    try:
        generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"cannot read generation_config.json of the model at {folder!r}: {error}") from error
    said = {name: getattr(generation, name, None) for name in _WITHOUT_EFFECT}
    said |= {name: value for name, value in _FILLED_IN.items() if said[name] is None}
    said = {name: value for name, value in said.items() if value not in _WITHOUT_EFFECT[name]}
    if not said.pop("do_sample", False):
        said = {name: value for name, value in said.items() if name not in _SHAPES_OF_SAMPLING} | {"temperature": 0.0}
    ours = {_SAMPLING[name]: said.pop(name) for name in list(said) if name in _SAMPLING}
    return ours, said
