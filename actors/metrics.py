"""Metrics: what one process publishes about a run through Ray."""

import threading
from collections.abc import Mapping

from actors import metric_table as table
from actors.metric_table import METRICS, Metric
from pipeline.counts import Counts
from pipeline.storage.retries import num_retries


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
        """Set a gauge. Ray drops one that is not set again within 20 s (`actors.heartbeat`)."""
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
