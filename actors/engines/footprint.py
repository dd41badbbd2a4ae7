"""Memory of the models of an engine, as far as it is known before they are loaded, and how much there is."""

from dataclasses import replace

import psutil
import torch

from actors.settings import GeneratorSettings
from decoding.checkpoint.gguf_file import origin_in_words
from decoding.checkpoint.loading import Footprint, footprint_of, made_of
from decoding.checkpoint.model_files import codes_in
from decoding.checkpoint.supported import load_config, max_positions
from decoding.choices import OWN_HEAD
from decoding.engine.options import settle_max_model_len
from decoding.fused.coded_linear import codes_run
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.fit import fitting_config, head_numbers
from decoding.heads.format.folder import is_assistant, is_head
from decoding.heads.mtp.files import own_head


def footprint(settings: GeneratorSettings, model: str) -> Footprint:
    """Return the memory of a model with all of an engine's slots; the stages of a target divide it among themselves.

    Beside stages a head has copies of what it reads of its target.
    """
    engine, models, is_apart = settings.engine, settings.models, settings.stages.is_apart
    length = settle_max_model_len(engine.max_model_len, max_positions(load_config(models.target)))
    sizes, target = (engine.num_slots, length), (load_config(models.target), models.target)
    if model == OWN_HEAD:
        num_weights, per_token = own_head(models.target).numbers(is_apart=is_apart)
    elif model == models.target or not is_head(model):
        found = footprint_of(load_config(model), models.dtype, *sizes, engine.num_speculative_tokens)
        if not _codes_run(settings, model):
            return found
        saved = sum(tensor.num_bytes_saved for tensor in set(codes_in(model).values()))  # a shared one counts once
        return replace(found, weights=found.weights - saved)
    elif is_assistant(model):
        num_weights, per_token = fitting_assistant(model, *target).num_weights, 0
    else:
        num_weights, per_token = head_numbers(model, fitting_config(model, *target), is_apart=is_apart)
    num_bytes = getattr(torch, models.dtype).itemsize
    return Footprint(num_weights * num_bytes, per_token * num_bytes, *sizes)


def made_of_in_words(settings: GeneratorSettings, model: str) -> str:
    """Return of what a model folder was made, and whether its codes are multiplied as they are; or nothing."""
    if settings.engine.backend != "dray":
        return origin_in_words(model)
    return made_of(model, settings.models.dtype, is_coded=_codes_run(settings, model))


def _codes_run(settings: GeneratorSettings, model: str) -> bool:
    models = settings.models
    is_sharded = settings.stages.tensor_parallel > 1 and model == models.target
    is_ours = settings.engine.backend == "dray" and not is_sharded
    return is_ours and codes_run(model, models.device, models.dtype)


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device, "cpu" or "cuda"; for the CPU those of its machine."""
    return int(torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available)
