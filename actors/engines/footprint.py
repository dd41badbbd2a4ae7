"""Memory of the models of an engine, as far as it is known before they are loaded, and how much there is."""

import psutil
import torch

from actors.settings import GeneratorSettings
from decoding.checkpoint.loading import Footprint, footprint_of
from decoding.checkpoint.supported import load_config, max_positions
from decoding.choices import OWN_HEAD
from decoding.engine.options import settle_max_model_len
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.fit import fitting_config, head_footprint
from decoding.heads.format.folder import is_assistant, is_head
from decoding.heads.mtp.files import own_head


def footprint(settings: GeneratorSettings, model: str) -> Footprint:
    """Return the memory of a model with all of an engine's slots; the stages of a target divide it among themselves.

    Beside stages a head has copies of what it reads of its target.
    """
    engine, models, is_apart = settings.engine, settings.models, settings.stages.is_apart
    length = settle_max_model_len(engine.max_model_len, max_positions(load_config(models.target)))
    if model == OWN_HEAD:
        return own_head(models.target).footprint(models.dtype, engine.num_slots, length, is_apart=is_apart)
    if model != models.target and is_assistant(model):
        assistant = fitting_assistant(model, load_config(models.target), models.target)
        return assistant.footprint(models.dtype, engine.num_slots, length)
    if model != models.target and is_head(model):
        config = fitting_config(model, load_config(models.target), models.target)
        return head_footprint(model, config, models.dtype, engine.num_slots, length, is_apart=is_apart)
    return footprint_of(load_config(model), models.dtype, engine.num_slots, length, engine.num_speculative_tokens)


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device, "cpu" or "cuda"; for the CPU those of its machine."""
    return int(torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available)
