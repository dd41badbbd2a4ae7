"""What the driver publishes while a run lasts: how much is left, and its storage retries."""

from __future__ import annotations

from actors.heartbeat import Heartbeat
from actors.metric_table import ROWS_LEFT, UNITS_LEFT
from actors.metrics import Metrics
from jobs.driver.progress import Progress


def publish_progress(run: str, progress: Progress) -> Heartbeat:
    """A heartbeat to enter while units are done. Ray must have been started."""
    metrics = Metrics(run)

    def publish() -> None:
        metrics.set(UNITS_LEFT, progress.num_units_left)
        metrics.set(ROWS_LEFT, progress.num_rows_left)
        metrics.add_storage_retries()

    return Heartbeat(publish)
