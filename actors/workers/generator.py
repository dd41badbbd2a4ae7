"""Generator: an Engine in a Ray Data actor. Work units in, committed parts and receipts out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import ray
import torch

from actors.drafts.links import DraftLinks
from actors.engine.facts import footer_facts, load_facts
from actors.engine.loop import EngineLoop
from actors.engine.translation import EncodedRow, decode_row, encode_row
from actors.settings import GeneratorSettings, ModelSettings, StageSettings
from actors.stages.group import StageGroup
from actors.stages.pipeline import StagePipeline
from actors.stages.probe import check_chain
from actors.stages.target import ShardedModel
from actors.units.worker import UnitWorker, describe
from decoding.device import Device
from decoding.engine.engine import Engine
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.logs import LogSettings
from pipeline.text.codec import TextCodec


def load_codec(settings: GeneratorSettings) -> TextCodec:
    """The tokenizer and chat template of these settings, or a ValueError saying what is wrong with them."""
    models, chat = settings.models, settings.chat
    return TextCodec.load(
        models.tokenizer or models.target,
        chat_template=chat.chat_template,
        system_prompt=chat.system_prompt,
        template_kwargs=chat.template_kwargs,
        template_columns=chat.template_columns,
    )


def load_engine(settings: GeneratorSettings, links: DraftLinks | None = None) -> Engine:
    """The engine of these settings, models loaded and probed, or a ValueError saying why it cannot run.

    `links` lead to the draft actors of placement "split".
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
    """Where a generator drafts whose stages have the GPUs: on the CPU, unless it was given a GPU of its own.

    Without one it still sees the GPUs of its node, which others hold.
    """
    own = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return "cuda" if own and device != "cpu" else "cpu"


def load_sharded(models: ModelSettings, stages: StageSettings, device: Device = "cpu") -> ShardedModel:
    """The target in stages, loaded and probed; questions come on `device`.

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


class Generator(UnitWorker[EncodedRow]):
    """A worker whose units share one engine."""

    def __init__(
        self,
        settings: GeneratorSettings,
        run_path: str,
        input_options: InputOptions,
        carried: Mapping[str, pa.DataType],
        ledger: Any,
        hang_timeout_s: float,
        log_settings: LogSettings,
        roster: Any = None,
    ) -> None:
        """Load the models once; the units come later.

        `ledger` is the run's Ledger, an actor; so is `roster`, its DraftRoster, under placement "split".
        """
        super().__init__(run_path, input_options, carried, ledger, log_settings)
        started = time.monotonic()
        self._settings = settings
        links: DraftLinks | None = None
        try:
            self._codec = load_codec(settings)
            links = None if settings.placement == "colocated" else DraftLinks(settings, roster)
            self._loop = EngineLoop(load_engine(settings, links), hang_timeout_s)
            facts = load_facts(self._loop.engine, settings.models.draft)
            self._reporter.loaded(self._loop, settings.models, facts, time.monotonic() - started, links)
        except Exception as error:  # noqa: BLE001 - the first unit reports it: Ray Data would wrap it beyond reading
            self._failure = describe(error)
            if links is not None:
                links.close()
            self._reporter.not_loaded(self._failure)
        self._join()

    def _facts(self) -> dict[str, str | bool | int]:
        return footer_facts(self._loop.engine)

    def _encode(self, row: InputRow, ordinal: int) -> EncodedRow:
        return encode_row(row, ordinal, self._codec, self._settings)

    def __del__(self) -> None:
        """Ray Data lets go of a worker by this. Its stages go with it; of a process that is killed Ray ends them."""
        target = self._loop.engine.target if hasattr(self, "_loop") else None
        if isinstance(target, ShardedModel) and ray.is_initialized():
            target.pipeline.close()

    async def _finish(self, rows: list[EncodedRow]) -> None:
        await self._loop.finish([sequence for row in rows for sequence in row.sequences])

    def _decode(self, row: EncodedRow) -> list[dict[str, Any]]:
        return decode_row(row, self._codec)
