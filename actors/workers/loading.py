"""Loading: the tokenizer and the engine of a generator's settings."""

from __future__ import annotations

import ray
import torch

from actors.drafts.links import DraftLinks
from actors.settings import GeneratorSettings, ModelSettings, StageSettings
from actors.stages.group import StageGroup
from actors.stages.pipeline import StagePipeline
from actors.stages.probe import check_chain
from actors.stages.target import ShardedModel
from decoding.device import Device
from decoding.engine.engine import Engine
from pipeline.text.codec import TextCodec


def load_codec(settings: GeneratorSettings) -> TextCodec:
    """Return the tokenizer and chat template of these settings. Raises ValueError for what is wrong with them."""
    models, chat = settings.models, settings.chat
    return TextCodec.load(
        models.tokenizer or models.target,
        chat_template=chat.chat_template,
        system_prompt=chat.system_prompt,
        template_kwargs=chat.template_kwargs,
        template_columns=chat.template_columns,
    )


def load_engine(settings: GeneratorSettings, links: DraftLinks | None = None) -> Engine:
    """Return the engine of these settings with its models loaded and probed.

    `links` are those of placement "split". Raises ValueError with the reason why the engine cannot run.
    """
    models = settings.models
    if not settings.stages.is_apart:
        return Engine.load(
            models.target, models.draft, settings.engine, device=models.device, dtype=models.dtype, remote=links
        )
    device = drafting_device(models.device)
    target = load_sharded(models, settings.stages, device)
    try:
        return Engine.load(
            models.target,
            models.draft,
            settings.engine,
            device=device,
            dtype=models.dtype,
            remote=links,
            target_model=target,
            num_lanes=target.num_lanes,
        )
    except BaseException:
        target.pipeline.close()
        raise


def drafting_device(device: Device) -> Device:
    """Return where a generator drafts whose stages have the GPUs: on the CPU, unless it holds a GPU of its own.

    Without one it still sees the GPUs of its node, which belong to other actors.
    """
    own = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if own and device != "cpu" else "cpu"


def load_sharded(models: ModelSettings, stages: StageSettings, device: Device = "cpu") -> ShardedModel:
    """Return the target in stages, loaded and probed. Its inputs are on `device`.

    Raises ValueError for a model that cannot be run or cut, RuntimeError if the cluster has no room for it.
    """
    pipeline = StagePipeline(StageGroup(models.target, stages, models.device, models.dtype))
    try:
        model = ShardedModel(pipeline, torch.device(device))
        check_chain(model, models.target)
    except Exception:
        pipeline.close()
        raise
    return model
