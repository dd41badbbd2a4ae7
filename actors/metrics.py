"""The metrics that Dray publishes through Ray: all of them are declared here, and explained in docs/metrics.md.

They are for watching: a process that dies takes with it what it had not handed to Ray (10 s at most). What a run has
written is counted exactly in its parts. In Prometheus their names begin with `ray_`, counters' end in `_total`, and Ray
adds labels that tell process and node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from ray.util import metrics as ray_metrics

from pipeline.counts import Counts
from pipeline.storage.retries import num_retries

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """A declared metric. `tags` come on top of "run", the last part of the output's name, which all have."""

    name: str
    kind: Kind
    unit: str
    description: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()  # of a histogram's buckets


ROWS = Metric(
    "dray_rows",
    "counter",
    "rows",
    "Input rows done, by outcome: generated (with all their samples) or failed.",
    ("outcome",),
)
ERRORS = Metric(
    "dray_errors",
    "counter",
    "rows",
    "Failed rows by the stage they failed at: read, template, encode, params or generate.",
    ("stage",),
)
GENERATIONS = Metric("dray_generations", "counter", "samples", "Samples written.")
PROMPT_TOKENS = Metric("dray_prompt_tokens", "counter", "tokens", "Prompt tokens, once a row whatever its samples.")
CACHED_PROMPT_TOKENS = Metric(
    "dray_cached_prompt_tokens",
    "counter",
    "tokens",
    "Prompt tokens copied from another row instead of computed, over all samples.",
)
OUTPUT_TOKENS = Metric("dray_output_tokens", "counter", "tokens", "Tokens written.")
ROUNDS = Metric("dray_rounds", "counter", "row rounds", "Rounds, counted once for each sample in them.")
DRAFT_TOKENS = Metric("dray_draft_tokens", "counter", "tokens", "Tokens drafted.")
ACCEPTED_TOKENS = Metric("dray_accepted_tokens", "counter", "tokens", "Drafted tokens that stood.")
ACCEPTED_BY_POSITION = Metric(
    "dray_accepted_tokens_by_position", "counter", "tokens", "The same by position in the draft, from 0.", ("position",)
)
UNITS_COMMITTED = Metric("dray_units_committed", "counter", "units", "Work units whose part was written.")
UNITS_REPEATED = Metric("dray_units_repeated", "counter", "units", "Attempts at a unit beyond its first, in a command.")
UNITS_BACKED_UP = Metric(
    "dray_units_backed_up",
    "counter",
    "units",
    "Backups of units under way elsewhere, begun because a process was idle.",
)
UNIT_SECONDS = Metric(
    "dray_unit_seconds",
    "histogram",
    "seconds",
    "Time of the attempts that wrote a part; Ray makes up the sum from the buckets.",
    boundaries=(1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 10800),
)
WORKER_DEATHS = Metric(
    "dray_worker_deaths",
    "counter",
    "processes",
    "Processes that died over units, each once; noticed when such a unit was begun again.",
)
STORAGE_RETRIES = Metric("dray_storage_retries", "counter", "operations", "Storage operations tried again.")
OUT_OF_MEMORY = Metric(
    "dray_out_of_memory", "counter", "times", "Memory ran out in an engine, which goes on with half its slots."
)
ENGINE_BUSY_SECONDS = Metric(
    "dray_engine_busy_seconds",
    "counter",
    "seconds",
    "Time in an engine's steps: reading prompts, and rounds. The rest of its life it waited.",
)
ENGINE_ROUND_SECONDS = Metric(
    "dray_engine_round_seconds", "counter", "seconds", "Time in rounds: drafting, scoring, verifying, committing."
)
ENGINE_SLOTS = Metric("dray_engine_slots", "gauge", "samples", "Samples that an engine can run at once.")
ENGINE_RUNNING = Metric("dray_engine_running", "gauge", "samples", "Samples that an engine runs.")
ENGINE_WAITING = Metric("dray_engine_waiting", "gauge", "samples", "Samples that wait for a slot of an engine.")
DRAFT_LOSSES = Metric(
    "dray_draft_actor_losses", "counter", "times", "A generator lost its draft actor, and went on without drafts."
)
DRAFT_TIMEOUTS = Metric(
    "dray_draft_timeouts", "counter", "drafts", "Drafts of draft actors that came too late, or never."
)
DRAFT_BYTES_SENT = Metric(
    "dray_draft_bytes_sent", "counter", "bytes", "Sent to draft actors: committed tokens, and new rows' prompts."
)
DRAFT_BYTES_RECEIVED = Metric("dray_draft_bytes_received", "counter", "bytes", "Received from draft actors: drafts.")
DRAFT_WAIT_SECONDS = Metric(
    "dray_draft_wait_seconds", "counter", "seconds", "Time that engines waited for drafts of draft actors."
)
UNITS_LEFT = Metric("dray_units_left", "gauge", "units", "Units that the command has still to do; from the driver.")
ROWS_LEFT = Metric("dray_rows_left", "gauge", "rows", "Rows in them.")

METRICS: tuple[Metric, ...] = (
    ROWS,
    ERRORS,
    GENERATIONS,
    PROMPT_TOKENS,
    CACHED_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    ROUNDS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_BY_POSITION,
    UNITS_COMMITTED,
    UNITS_REPEATED,
    UNITS_BACKED_UP,
    UNIT_SECONDS,
    WORKER_DEATHS,
    STORAGE_RETRIES,
    OUT_OF_MEMORY,
    ENGINE_BUSY_SECONDS,
    ENGINE_ROUND_SECONDS,
    ENGINE_SLOTS,
    ENGINE_RUNNING,
    ENGINE_WAITING,
    DRAFT_LOSSES,
    DRAFT_TIMEOUTS,
    DRAFT_BYTES_SENT,
    DRAFT_BYTES_RECEIVED,
    DRAFT_WAIT_SECONDS,
    UNITS_LEFT,
    ROWS_LEFT,
)


class Metrics:
    """What one process publishes about one run. Its methods may be called in any thread of a process of Ray."""

    def __init__(self, run: str) -> None:
        """`run` is the tag that tells runs apart."""
        self._of_ray = {metric.name: _to_ray(metric).set_default_tags({"run": run}) for metric in METRICS}
        self._published = {STORAGE_RETRIES.name: float(num_retries())}
        self._publishing = threading.Lock()

    def add(self, metric: Metric, amount: float, **tags: str) -> None:
        """Add to a counter; a series is there from its first addition that is not zero."""
        if amount:
            self._of_ray[metric.name].inc(amount, tags)

    def add_up_to(self, metric: Metric, total: float) -> None:
        """Add to a counter without further tags what is missing to `total`, as this process has counted it."""
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
        """Add what came out of some rows."""
        self.add(ROWS, counts.num_rows - counts.num_errors, outcome="generated")
        self.add(ROWS, counts.num_errors, outcome="failed")
        for stage, num_errors in errors_by_stage.items():
            self.add(ERRORS, num_errors, stage=stage)
        self.add(GENERATIONS, counts.num_generations)
        self.add(PROMPT_TOKENS, counts.num_prompt_tokens)
        self.add(CACHED_PROMPT_TOKENS, counts.num_cached_tokens)
        self.add(OUTPUT_TOKENS, counts.num_output_tokens)
        self.add(ROUNDS, counts.num_rounds)
        self.add(DRAFT_TOKENS, counts.num_draft_tokens)
        self.add(ACCEPTED_TOKENS, counts.num_accepted_tokens)
        for position, num_accepted in enumerate(counts.accepted_per_position):
            self.add(ACCEPTED_BY_POSITION, num_accepted, position=str(position))

    def add_storage_retries(self) -> None:
        """Add the retries of this process since this object was made."""
        self.add_up_to(STORAGE_RETRIES, num_retries())


class Heartbeat:
    """Calls `beat` every few seconds in a thread of its own, and once more at the end."""

    def __init__(self, beat: Callable[[], None], every_s: float = 5.0) -> None:
        """Ray drops a gauge after 20 s, so `every_s` is well below that."""
        self.beat, self._every_s = beat, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin; a process that is to beat as long as it lives never ends it."""
        self._thread.start()

    def __enter__(self) -> Heartbeat:
        """Begin."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End with a last beat."""
        self.end()

    def end(self) -> None:
        """End what was started, with a last beat."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        self.beat()
        while not self._end.wait(self._every_s):
            self.beat()
        self.beat()


def _to_ray(metric: Metric) -> Any:
    tags = ("run", *metric.tags)
    if metric.kind == "counter":
        return ray_metrics.Counter(metric.name, metric.description, tags)
    if metric.kind == "gauge":
        return ray_metrics.Gauge(metric.name, metric.description, tags)
    return ray_metrics.Histogram(metric.name, metric.description, list(metric.boundaries), tags)
