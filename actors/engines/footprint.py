"""Memory of the models of an engine, as far as it is known before they are loaded, and how much there is."""

import logging
from bisect import bisect_right
from dataclasses import replace
from math import ceil

import psutil
import torch

from actors.engines.model_check import why_not_fused
from actors.settings import MOST_SLOTS, GeneratorSettings
from decoding.cache.footprint import GIB, SHARE, Footprint
from decoding.checkpoint.gguf_file import origin_in_words
from decoding.checkpoint.loading import footprint_of, made_of
from decoding.checkpoint.model_files import codes_in
from decoding.checkpoint.supported import load_config, max_positions
from decoding.choices import NEED_A_MODEL, OWN_HEAD
from decoding.engine.options import settle_max_model_len
from decoding.fused.coded_linear import codes_run
from decoding.fused.recordings import LAYER_KERNELS, power_of_two
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.fit import fitting_config, head_numbers
from decoding.heads.format.folder import is_assistant, is_head
from decoding.heads.mtp.files import own_head

_log = logging.getLogger(__name__)
# Of a recorded kernel, in the device's memory. It was not measured: graphs of some hundred kernels are said to
# take 3 to 8 MB.
_BYTES_A_KERNEL = 16 << 10
_SHORTEST_REACH = 1024  # positions: rounds are recorded for this many, and for each power of two above


def footprint(settings: GeneratorSettings, model: str) -> Footprint:
    """Return the memory of a model with all of an engine's slots; the stages of a target divide it among themselves.

    Beside stages a head has copies of what it reads of its target.
    """
    engine, models, is_apart = settings.engine, settings.models, settings.stages.is_apart
    length = settle_max_model_len(engine.max_model_len, max_positions(load_config(models.target)))
    sizes, target = (engine.slots, length), (load_config(models.target), models.target)
    if model == OWN_HEAD:
        num_weights, per_token = own_head(models.target).numbers(is_apart=is_apart)
    elif model == models.target or not is_head(model):
        found = footprint_of(load_config(model), models.dtype, *sizes, engine.num_speculative_tokens)
        if models.device == "cuda" and not why_not_fused(model, "cuda"):
            recorded, logits = _recorded(settings, model, length)
            has_pages = not (is_apart and model == models.target)  # stages have whole slots
            found = replace(found, recorded=recorded, logits_per_slot=logits, has_pages=has_pages)
            if model == models.target or not (models.draft_vocabulary == "map" or settings.has_draft_actors):
                found = replace(found, tokens_per_slot=engine.tokens_per_slot)
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


def _recorded(settings: GeneratorSettings, model: str, length: int) -> tuple[int, int]:
    """Return the bytes of the recordings that are made before the first round, and of a slot's logits of a round.

    There is room for those of a draft rounded up, twice: with grammars they wait, beside masks with a bit a token. A
    draft model has those of one token.
    """
    engine, text = settings.engine, load_config(model).get_text_config()
    num_lengths = 1 + engine.num_speculative_tokens
    width = 1 + power_of_two(engine.num_speculative_tokens) if model == settings.models.target else 1
    bytes_a_token = 2 * getattr(torch, settings.models.dtype).itemsize + 1 / 8
    num_reaches = 1 + max(0, (length - 1).bit_length() - (_SHORTEST_REACH - 1).bit_length())
    num_kernels = num_lengths * num_reaches * text.num_hidden_layers * LAYER_KERNELS
    return num_kernels * _BYTES_A_KERNEL, ceil(width * text.vocab_size * bytes_a_token)


def with_slots(settings: GeneratorSettings, num_engines: int = 1) -> GeneratorSettings:
    """Return the settings with the number of slots that `auto` is in this process, whose models are not loaded yet.

    It is what the GPU has room for beside the models, in the memory that is free now, and at most MOST_SLOTS. A process
    with a part of a GPU gets that part of its memory. `num_engines` over the same models are there at once. Raises
    ValueError if not one slot fits.
    """
    if not settings.has_slots_by_memory:
        return settings
    models, drafter = settings.models, settings.engine.pick_drafter(settings.models.draft)
    named = [models.target, *([models.draft] if models.draft is not None and drafter in NEED_A_MODEL else [])]
    found = [footprint(settings, model) for model in named]
    fixed = sum(each.fixed for each in found)
    of_slots = [  # with pages a slot takes what a row is expected to take, and all of them no less than one whole row
        num_engines * sum(replace(each, num_slots=number).of_slots for each in found)
        for number in range(1, 1 + MOST_SLOTS)
    ]
    free, own = torch.cuda.mem_get_info()
    import ray  # here, so that the plan of a model needs no Ray

    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:  # a driver holds nothing
        own = int(own * min(1.0, ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)))
    room = min(free, own) - (1 - SHARE) * own - fixed
    number = bisect_right(of_slots, room)
    if not number:
        raise ValueError(
            f"engine.num_slots is auto, and not one slot of this GPU fits beside the models: they and their recordings "
            f"take {fixed / GIB:.2f} GiB and a slot {of_slots[0] / GIB:.2f}; of {own / GIB:.2f} GiB {free / GIB:.2f} "
            f"are free, and {(1 - SHARE) * own / GIB:.2f} are kept for forwards; lower engine.max_model_len, use a "
            "larger GPU, or set engine.num_slots"
        )
    text = (
        "engine.num_slots auto: %d slots in %.2f GiB, beside %.2f GiB of models and recordings; %.2f of %.2f are free"
    )
    _log.info(text, number, of_slots[number - 1] / GIB, fixed / GIB, free / GIB, own / GIB)
    return replace(settings, engine=replace(settings.engine, num_slots=number))


def slots_in_words(settings: GeneratorSettings) -> str:
    """Return for a reader how many slots an engine has, as far as that is known where its GPU is not."""
    by_memory = f"as many as its GPU has room for (engine.num_slots auto), at most {MOST_SLOTS}"
    return by_memory if settings.has_slots_by_memory else str(settings.engine.slots)


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
