"""LoadedEngine: the tokenizer and the engine of a generator's settings, and what their process says about them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from actors import metric_table as metrics
from actors.engine.loop import EngineLoop, EngineStats
from actors.engines import backend_of
from actors.engines.loaded import Loaded
from actors.heartbeat import EVERY_S, Heartbeat
from actors.metrics import Metrics
from actors.settings import GeneratorSettings
from decoding.checkpoint.supported import model_folder
from pipeline.text.codec import TextCodec

if TYPE_CHECKING:
    from actors.drafts.remote_drafter import DraftLinks

_Loaded = TypeVar("_Loaded")


class LoadedEngine:
    """A process's engine in its loop, with the tokenizer, and with links to draft actors if there are any.

    When Ray deletes the worker that holds it, it ends its stages and leaves its draft actors. Ray ends the stages of a
    process that is killed.
    """

    links: DraftLinks | None = None
    _loaded: Loaded | None = None

    def __init__(
        self, settings: GeneratorSettings, roster: Any, hang_timeout_s: float, num_reserved: int | None = None
    ) -> None:
        """Load the models. Raises ValueError if they cannot be run.

        `roster` is the actor of the DraftRoster under placement "split", and None otherwise; `hang_timeout_s` and
        `num_reserved` are those of an EngineLoop.
        """
        started, backend = time.monotonic(), backend_of(settings)
        backend.check()
        self.settings = settings
        self.codec = load_codec(settings)
        leave_modules_alone()
        if roster is not None:
            from actors.drafts.remote_drafter import DraftLinks  # a planning driver needs the codec alone

            self.links = DraftLinks(settings, roster)
        try:
            self._loaded = loaded = in_own_thread(lambda: backend.load(self.links))
        except BaseException:
            self._close()
            raise
        self.footer, self.round_seconds = loaded.footer, loaded.round_seconds
        if settings.is_exact_required and self.footer["exact_text"] == "no":
            raise ValueError(
                f"run.exact is 'required', but on {self.footer['device']} in {self.footer['dtype']} the texts of this "
                "engine depend on the batch (docs/promise.md); with engine.backend 'dray' set models.dtype to "
                "'float32', or set run.exact to 'any'"
            )
        self.loop = EngineLoop(loaded.engine, hang_timeout_s, num_reserved)
        self.facts = {**loaded.facts, "seconds": round(time.monotonic() - started, 3)}  # for the log

    def __del__(self) -> None:
        if ray is not None and ray.is_initialized():  # None: the interpreter ends, and has cleared this module
            self._close()

    def _close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
        if self.links is not None:
            self.links.close()


@cache
def leave_modules_alone() -> None:
    """Let garbage collections pass over what is there now, once: most of it is modules, which stay.

    To look at all that torch and transformers consist of takes 0.2 s, in which no round is done. The model comes
    later: what is in a circle of references with it can still be freed.
    """
    gc.collect()
    gc.freeze()


def in_own_thread(load: Callable[[], _Loaded]) -> _Loaded:
    """Return what `load` returns, called in a thread that ends then; raise what it raises.

    OpenMP keeps a team of threads for each thread that has computed. With two teams, that of loading and that of the
    EngineLoop, it has more threads than processors, lets them sleep at every barrier, and rounds take longer.
    """
    loaded = Future[_Loaded]()

    def run() -> None:
        try:
            loaded.set_result(load())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            loaded.set_exception(error)

    Thread(target=run, name="loading", daemon=True).start()  # a process that ends does not wait for it
    return loaded.result()


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


def publish_engine(
    to: Metrics,
    loop: EngineLoop,
    links: DraftLinks | None = None,
    tell: Callable[[EngineStats], None] = lambda stats: None,
    every_s: float = EVERY_S,
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

    return Heartbeat(publish, every_s)
