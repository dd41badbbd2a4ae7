"""Published stats: what an engine's process hands to Ray every few seconds."""

from __future__ import annotations

from actors import metric_table as metrics
from actors.drafts.links import DraftLinks
from actors.engine.loop import EngineLoop
from actors.heartbeat import Heartbeat
from actors.metrics import Metrics


def publish_engine(to: Metrics, loop: EngineLoop, links: DraftLinks | None = None) -> Heartbeat:
    """Return a heartbeat that publishes the stats of an engine and of its links, and the process's storage retries."""

    def publish() -> None:
        numbers = loop.numbers()
        to.set(metrics.ENGINE_SLOTS, numbers.num_slots)
        to.set(metrics.ENGINE_RUNNING, numbers.num_running)
        to.set(metrics.ENGINE_WAITING, numbers.num_waiting)
        to.add_up_to(metrics.ENGINE_BUSY_SECONDS, numbers.busy_seconds)
        to.add_up_to(metrics.ENGINE_ROUND_SECONDS, numbers.round_seconds)
        to.add_up_to(metrics.OUT_OF_MEMORY, numbers.num_out_of_memory)
        if links is not None:
            link_stats = links.stats
            to.add_up_to(metrics.DRAFT_LOSSES, link_stats.num_losses)
            to.add_up_to(metrics.DRAFT_TIMEOUTS, link_stats.num_timeouts)
            to.add_up_to(metrics.DRAFT_BYTES_SENT, link_stats.num_bytes_sent)
            to.add_up_to(metrics.DRAFT_BYTES_RECEIVED, link_stats.num_bytes_received)
            to.add_up_to(metrics.DRAFT_WAIT_SECONDS, link_stats.wait_seconds)
        to.add_storage_retries()

    return Heartbeat(publish)
