"""The models of Dray's own engine: loaded in the process that runs it, described for its parts."""

import gc
import logging
from dataclasses import replace
from functools import partial
from traceback import clear_frames
from typing import Any

import ray
import torch

from actors.drafts.remote_drafter import DraftLinks
from actors.engines.footprint import with_slots
from actors.engines.loaded import Loaded
from actors.placement import StageSettings
from actors.settings import GeneratorSettings, ModelSettings
from actors.stages.group import StageGroup
from actors.stages.pipeline import StagePipeline
from actors.stages.probe import check_chain
from actors.stages.target import ShardedModel
from decoding.choices import TEXT_DEPENDS_ON_DRAFT, Exact
from decoding.device import Device, is_out_of_memory
from decoding.engine.engine import Engine
from decoding.engine.rounds.lane import divide_slots
from decoding.fused.kernels import linear_kind
from decoding.gpu.available import gpu_kind
from pipeline.logs import Event

_log = logging.getLogger(__name__)


def load(settings: GeneratorSettings, links: DraftLinks | None = None) -> Loaded:
    """Return the engine of these settings, and what it says about itself. Raises ValueError as `load_engine` does."""
    engine = load_engine(settings, links)
    if not isinstance(engine.target, ShardedModel):
        loaded = _described(engine, settings.models.draft)
        if settings.has_slots_by_memory:  # which the configuration does not say
            loaded.footer["slots"] = engine.options.slots
        return loaded
    try:
        return _described(engine, settings.models.draft, close=engine.target.pipeline.close)
    except BaseException:
        engine.target.pipeline.close()
        raise


def _described(engine: Engine, draft: str | None, **own: Any) -> Loaded:
    footer = {**footer_facts(engine), "drafter": _drafter(engine, draft)}
    return Loaded(engine, footer, load_facts(engine, draft), round_seconds(engine), **own)


def _drafter(engine: Engine, draft: str | None) -> str:
    """Return the name of an engine's drafter, or of all that take turns."""
    return engine.options.pick_drafter(draft) if engine.learned is None else ", ".join(engine.learned.tallies)


def load_engine(settings: GeneratorSettings, links: DraftLinks | None = None) -> Engine:
    """Return the engine of these settings, loaded and probed. Raises ValueError with the reason why it cannot run.

    Where the memory of a GPU decides the number of slots, an engine for which it runs out nevertheless is loaded again
    with half of them.
    """
    is_by_memory, settings = settings.has_slots_by_memory, with_slots(settings)
    while True:
        try:
            return _loaded_engine(settings, links)
        except RuntimeError as error:
            num_slots = settings.engine.slots
            if not is_by_memory or num_slots == 1 or not is_out_of_memory(error):
                raise
            _log.warning(Event("out of memory", slots=num_slots, going_on_with=num_slots // 2, running=0))
            clear_frames(error.__traceback__)  # which hold what was loaded
        gc.collect()  # recordings and what they record are in a circle of references
        settings = replace(settings, engine=replace(settings.engine, num_slots=num_slots // 2))


def _loaded_engine(settings: GeneratorSettings, links: DraftLinks | None) -> Engine:
    models = settings.models
    load = partial(
        Engine.load,
        models.target,
        models.draft,
        settings.engine,
        dtype=models.dtype,
        remote=links,
        draft_vocabulary=models.draft_vocabulary,
        tokenizer=models.tokenizer,
        turns=settings.turns,
    )
    if not settings.stages.is_apart:
        return load(device=models.device)
    device = drafting_device(models.device)
    target = load_sharded(models, settings.stages, device, settings.engine.exact)
    try:
        return load(device=device, target_model=target, num_lanes=target.num_lanes)
    except BaseException:
        target.pipeline.close()
        raise


def drafting_device(device: Device) -> Device:
    """Return where a generator drafts whose stages have the GPUs: on the CPU, unless it holds a GPU of its own.

    Without one it still sees the GPUs of its node, which belong to other actors.
    """
    own = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if own and device != "cpu" else "cpu"


def load_sharded(
    models: ModelSettings, stages: StageSettings, device: Device = "cpu", exact: Exact = "off"
) -> ShardedModel:
    """Return the target in stages, loaded and probed, with the products of `engine.exact`. Its inputs are on `device`.

    Raises ValueError for a model that cannot be run or cut, RuntimeError if its stages do not come up.
    """
    pipeline = StagePipeline(StageGroup(models.target, stages, models.device, models.dtype))
    try:
        model = ShardedModel(pipeline, torch.device(device))
        check_chain(model, models.target, exact)
    except Exception:
        pipeline.close()
        raise
    return model


def footer_facts(engine: Engine) -> dict[str, str | bool | int]:
    """Return what a part records about the engine that made it: engines of one run may be on different machines.

    `is_batch_invariant`: a token's logits were the same, bit for bit, whatever ran beside it (docs/adr/0011).
    `kernels`: the instructions of the CPU kernels that made it so, or the GPU and what compiled its kernels; those of
    another kind round otherwise. `coded_layers`: how many products read weights of 4 or 8 bits as they are; these are
    the numbers of their float32 weights, added in the same order, so they are no other kind. `exact` is the setting of
    that name, and `exact_text` what may be said of the texts, as `exact` in report.json. `fallback`, if it is there:
    which models run otherwise than they were to, and slower, and why.
    """
    target = engine.target
    kind = ""
    if target.is_batch_invariant:
        kind = linear_kind(target.dtype) if target.runs_on == "cpu" else gpu_kind(target.runs_on)
    return {
        "device": target.runs_on,
        "dtype": str(target.dtype).removeprefix("torch."),
        "is_batch_invariant": target.is_batch_invariant,
        "kernels": kind,
        "coded_layers": target.facts().get("coded_layers", 0),
        **({"fallback": engine.fallback} if engine.fallback else {}),
        "exact": engine.options.exact,
        "verification": engine.options.verification,
        "exact_text": _exact_text(engine),
        "placement": "split" if engine.has_remote_drafts else "colocated",
        "stages": target.facts().get("stages", 1),
        "ranks": target.facts().get("ranks", 1),
    }


def _exact_text(engine: Engine) -> str:
    if engine.options.verification in TEXT_DEPENDS_ON_DRAFT:
        return "no"
    if engine.target.dtype is torch.float32:
        return "proved"
    return "batch-invariant" if engine.target.is_batch_invariant else "no"


def load_facts(engine: Engine, draft: str | None) -> dict[str, Any]:
    """Return what the log says about an engine: models, device, which code runs, slots, and the measured costs."""
    target, costs = engine.target, engine.lanes[0].schedule.costs
    facts: dict[str, Any] = {
        **footer_facts(engine),
        "drafter": _drafter(engine, draft),
        **({"left_out": engine.left_out} if engine.left_out else {}),
        **target.facts(),
        "slots": engine.options.slots,
        "lanes": len(engine.lanes),
        "max_model_len": engine.max_model_len,
    }
    if costs is not None:  # milliseconds of a target forward by tokens, and of a draft step by rows
        facts["target_ms"] = {str(tokens): round(1e3 * seconds, 3) for tokens, seconds in costs.target}
        facts["draft_ms"] = {str(rows): round(1e3 * seconds, 3) for rows, seconds in costs.draft}
        facts["round_ms"] = round(1e3 * costs.round_seconds, 3)
    return facts


def round_seconds(engine: Engine) -> tuple[float, ...]:
    """Return what a round of all of a lane's slots takes, by the draft length of its rows, as measured at the start.

    Index 0 is plain decoding. It is empty where draft lengths do not adapt, so that nothing was measured, and where
    drafting happens beside the target, so that a round has no time of its own.
    """
    costs, most = engine.lanes[0].schedule.costs, engine.options.num_speculative_tokens
    if costs is None or costs.is_overlapped:
        return ()
    rows = divide_slots(engine.options.slots, len(engine.lanes))[0]
    return tuple(round(costs.of_round(rows, length), 6) for length in range(most + 1))
