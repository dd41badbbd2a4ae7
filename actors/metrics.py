"""Metrics: what one process publishes about a run through Ray; and Heartbeat, a thread that does so again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from actors import metric_table as table
from actors.metric_table import METRICS, Metric
from pipeline.counts import Counts
from pipeline.storage.retries import num_retries


class Heartbeat:
    """A thread that calls `beat` at once, then every `every_s` seconds, and once more at the end."""

    def __init__(self, beat: Callable[[], None], every_s: float = 5.0) -> None:
        """Prepare the thread. Ray drops a gauge that was not set for 20 s, so the default is well below that."""
        self.beat, self._every_s = beat, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin. A heartbeat that lasts as long as its process is never ended."""
        self._thread.start()

    def end(self) -> None:
        """End a heartbeat that was started, after a last beat."""
        self._end.set()
        self._thread.join()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _run(self) -> None:
        self.beat()
        while not self._end.wait(self._every_s):
            self.beat()
        self.beat()


class Metrics:
    """The metrics that one process publishes about one run. Any thread of a process of Ray may call its methods."""

    def __init__(self, run: str) -> None:
        """Publish under the tag `run`."""
        self._of_ray = {metric.name: metric.to_ray(run=run) for metric in METRICS}
        self._published = {table.STORAGE_RETRIES.name: float(num_retries())}
        self._publishing = threading.Lock()

    def add(self, metric: Metric, amount: float, **tags: str) -> None:
        """Add to a counter."""
        if amount:
            self._of_ray[metric.name].inc(amount, tags)

    def add_up_to(self, metric: Metric, total: float) -> None:
        """Raise a counter without further tags to `total`, which this process has counted."""
        with self._publishing:
            published = self._published.get(metric.name, 0.0)
            self._published[metric.name] = max(published, total)
        self.add(metric, max(0.0, total - published))

    def set(self, metric: Metric, value: float) -> None:
        """Set a gauge. Ray drops one that is not set again within 20 s (`Heartbeat`)."""
        self._of_ray[metric.name].set(value)

    def observe(self, metric: Metric, value: float) -> None:
        """Count a value in a histogram."""
        self._of_ray[metric.name].observe(value)

    def add_rows(self, counts: Counts, errors_by_stage: Mapping[str, int]) -> None:
        """Add the counts of rows that are done."""
        self.add(table.ROWS, counts.num_rows - counts.num_errors, outcome="generated")
        self.add(table.ROWS, counts.num_errors, outcome="failed")
        for stage, num_errors in errors_by_stage.items():
            self.add(table.ERRORS, num_errors, stage=stage)
        self.add(table.GENERATIONS, counts.num_generations)
        self.add(table.PROMPT_TOKENS, counts.num_prompt_tokens)
        self.add(table.CACHED_PROMPT_TOKENS, counts.num_cached_tokens)
        self.add(table.OUTPUT_TOKENS, counts.num_output_tokens)
        self.add(table.ROUNDS, counts.num_rounds)
        self.add(table.DRAFT_TOKENS, counts.num_draft_tokens)
        self.add(table.ACCEPTED_TOKENS, counts.num_accepted_tokens)
        for position, num_accepted in enumerate(counts.accepted_per_position):
            self.add(table.ACCEPTED_BY_POSITION, num_accepted, position=str(position))

    def add_storage_retries(self) -> None:
        """Add the retries of this process since this object was made."""
        self.add_up_to(table.STORAGE_RETRIES, num_retries())
