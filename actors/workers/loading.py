"""LoadedEngine: the tokenizer and the engine of a generator's settings, and what their process says about them."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import torch

from actors import metric_table as metrics
from actors.drafts.links import DraftLinks
from actors.engine.loop import EngineLoop, EngineStats
from actors.engine.token_engine import TokenEngine
from actors.heartbeat import Heartbeat
from actors.metrics import Metrics
from actors.settings import GeneratorSettings, ModelSettings, StageSettings
from actors.stages.group import StageGroup
from actors.stages.pipeline import StagePipeline
from actors.stages.probe import check_chain
from actors.stages.target import ShardedModel
from actors.vllm import arguments as vllm_arguments
from decoding.checkpoint.supported import model_folder
from decoding.device import Device
from decoding.engine.engine import Engine
from decoding.engine.lane import divide_slots
from decoding.fused.kernels import linear_kind
from decoding.gpu.available import gpu_kind
from decoding.sampling.rules import RULES
from pipeline.text.codec import TextCodec

if TYPE_CHECKING:
    from actors.vllm.engine import VllmEngine

_Engine = TypeVar("_Engine", bound=TokenEngine)


class LoadedEngine:
    """A process's engine in its loop, with the tokenizer, and with links to draft actors under placement "split".

    When Ray deletes the worker that holds it, it ends its stages and leaves its draft actors. Ray ends the stages of a
    process that is killed.
    """

    links: DraftLinks | None = None
    _target: ShardedModel | None = None

    def __init__(
        self, settings: GeneratorSettings, roster: Any, hang_timeout_s: float, num_reserved: int | None = None
    ) -> None:
        """Load the models. Raises ValueError if they cannot be run.

        `roster` is the actor of the DraftRoster under placement "split"; `hang_timeout_s` and `num_reserved` are those
        of an EngineLoop.
        """
        started = time.monotonic()
        self.codec = load_codec(settings)
        engine: TokenEngine
        if settings.engine.backend == "vllm":
            engine = vllm_engine = in_own_thread(lambda: load_vllm_engine(settings))
            self.footer, facts = vllm_engine.footer(), vllm_engine.description()
            self.round_seconds: tuple[float, ...] = ()
        else:
            engine = own_engine = in_own_thread(lambda: self._load(settings, roster))
            self.footer, facts = footer_facts(own_engine), load_facts(own_engine, settings.models.draft)
            self.round_seconds = round_seconds(own_engine)
        if settings.is_exact_required and self.footer["exact_text"] == "no":
            raise ValueError(
                f"run.exact is 'required', but on {self.footer['device']} in {self.footer['dtype']} the texts of this "
                "engine depend on the batch (docs/promise.md); with engine.backend 'dray' set models.dtype to "
                "'float32', or set run.exact to 'any'"
            )
        self.loop = EngineLoop(engine, hang_timeout_s, num_reserved)
        self.facts = {**facts, "seconds": round(time.monotonic() - started, 3)}  # for the log

    def _load(self, settings: GeneratorSettings, roster: Any) -> Engine:
        if settings.placement == "split":
            self.links = DraftLinks(settings, roster)
        try:
            engine = load_engine(settings, self.links)
        except BaseException:
            self._close()
            raise
        if isinstance(engine.target, ShardedModel):
            self._target = engine.target
        return engine

    def __del__(self) -> None:
        if ray.is_initialized():
            self._close()

    def _close(self) -> None:
        if self._target is not None:
            self._target.pipeline.close()
        if self.links is not None:
            self.links.close()


def in_own_thread(load: Callable[[], _Engine]) -> _Engine:
    """Return what `load` returns, called in a thread that ends then; raise what it raises.

    OpenMP keeps a team of threads for each thread that has computed. With two teams, that of loading and that of the
    EngineLoop, it has more threads than processors, lets them sleep at every barrier, and rounds take longer.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="loading") as thread:
        return thread.submit(load).result()


def load_codec(settings: GeneratorSettings) -> TextCodec:
    """Return the tokenizer and chat template of these settings. Raises ValueError for what is wrong with them."""
    models, chat = settings.models, settings.chat
    return TextCodec.load(
        model_folder(models.tokenizer or models.target),
        chat_template=chat.chat_template,
        system_prompt=chat.system_prompt,
        template_kwargs=chat.template_kwargs,
        template_columns=chat.template_columns,
        tool_calls=chat.tool_calls,
        reasoning=chat.reasoning,
        template_name=chat.template_name,
        moment=None if chat.moment is None else datetime.fromisoformat(chat.moment),
    )


def load_vllm_engine(settings: GeneratorSettings) -> "VllmEngine":
    """Return vLLM's engine for these settings. Raises ValueError with the reason why it cannot run."""
    vllm_arguments.check(settings)
    vllm_arguments.prepare_environment(settings.engine.vllm_env)
    from actors.vllm.engine import VllmEngine  # it brings vLLM, which needs its environment before

    return VllmEngine(settings)


def load_engine(settings: GeneratorSettings, links: DraftLinks | None = None) -> Engine:
    """Return the engine of these settings, loaded and probed. Raises ValueError with the reason why it cannot run."""
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
    )
    if not settings.stages.is_apart:
        return load(device=models.device)
    device = drafting_device(models.device)
    target = load_sharded(models, settings.stages, device)
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


def footer_facts(engine: Engine) -> dict[str, str | bool | int]:
    """Return what a part records about the engine that made it: engines of one run may be on different machines.

    `is_batch_invariant`: a token's logits were the same, bit for bit, whatever ran beside it (docs/adr/0011).
    `kernels`: the instructions of the CPU kernels that made it so, or the GPU and what compiled its kernels; those of
    another kind round otherwise. `exact` is the setting of that name, and `exact_text` what may be said of the texts,
    as `exact` in report.json.
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
        "exact": engine.options.exact,
        "verification": engine.options.verification,
        "exact_text": _exact_text(engine),
        "placement": "split" if engine.has_remote_drafts else "colocated",
        "stages": target.facts().get("stages", 1),
        "ranks": target.facts().get("ranks", 1),
    }


def _exact_text(engine: Engine) -> str:
    if RULES[engine.options.verification].text_depends_on_draft:
        return "no"
    if engine.target.dtype is torch.float32:
        return "proved"
    return "batch-invariant" if engine.target.is_batch_invariant else "no"


def load_facts(engine: Engine, draft: str | None) -> dict[str, Any]:
    """Return what the log says about an engine: models, device, which code runs, slots, and the measured costs."""
    target, costs = engine.target, engine.lanes[0].schedule.costs
    facts: dict[str, Any] = {
        **footer_facts(engine),
        "drafter": engine.options.pick_drafter(draft),
        **target.facts(),
        "slots": engine.options.num_slots,
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
    rows = divide_slots(engine.options.num_slots, len(engine.lanes))[0]
    return tuple(round(costs.of_round(rows, length), 6) for length in range(most + 1))


def publish_engine(
    to: Metrics,
    loop: EngineLoop,
    links: DraftLinks | None = None,
    tell: Callable[[EngineStats], None] = lambda stats: None,
) -> Heartbeat:
    """Return a heartbeat that publishes the stats of an engine and of its links, and the process's storage retries.

    It hands the stats to `tell`, too.
    """

    def publish() -> None:
        stats = loop.stats()
        tell(stats)
        to.set(metrics.ENGINE_SLOTS, stats.num_slots)
        to.set(metrics.ENGINE_RUNNING, stats.num_running)
        to.set(metrics.ENGINE_WAITING, stats.num_waiting)
        to.add_up_to(metrics.ENGINE_BUSY_SECONDS, stats.busy_seconds)
        to.add_up_to(metrics.ENGINE_ROUND_SECONDS, stats.round_seconds)
        to.add_up_to(metrics.OUT_OF_MEMORY, stats.num_out_of_memory)
        if links is not None:
            link_stats = links.stats
            to.add_up_to(metrics.DRAFT_LOSSES, link_stats.num_losses)
            to.add_up_to(metrics.DRAFT_TIMEOUTS, link_stats.num_timeouts)
            to.add_up_to(metrics.DRAFT_BYTES_SENT, link_stats.num_bytes_sent)
            to.add_up_to(metrics.DRAFT_BYTES_RECEIVED, link_stats.num_bytes_received)
            to.add_up_to(metrics.DRAFT_WAIT_SECONDS, link_stats.wait_seconds)
        to.add_storage_retries()

    return Heartbeat(publish)
