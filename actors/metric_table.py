"""Every metric of Dray, declared once: those of a run and those of the endpoint, for Ray and for the page `/metrics`.

docs/metrics.md and docs/serving.md explain them. They are for watching: a process that dies takes with it what it had
not handed to Ray (10 s at most). What a run has written is counted exactly in its parts. In Prometheus the names of
Ray's metrics begin with `ray_`, those of counters end in `_total`, and Ray adds labels that tell process and node.
"""

from dataclasses import dataclass, field
from functools import partialmethod
from itertools import product
from typing import Any, Literal, get_args

from ray.util import metrics as ray_metrics

from pipeline.errors import Stage

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """A declared metric. The first of its tags is the one that all metrics of its table have."""

    name: str
    kind: Kind
    unit: str
    description: str
    tags: tuple[str, ...]
    boundaries: tuple[float, ...] = ()  # of a histogram's buckets
    values: tuple[tuple[str, ...], ...] = ()  # of a counter's further tags, where they are known beforehand
    vllm: tuple[str, ...] = ()  # the names of vLLM's metrics that mean the same
    is_asked_for: bool = False  # it is on the page alone, and asked for when that is

    def first_series(self) -> list[dict[str, str]]:
        """Return the further tags of each series of a counter that a process begins at 0."""
        if self.kind != "counter" or len(self.values) != len(self.tags) - 1:
            return []
        return [dict(zip(self.tags[1:], values, strict=True)) for values in product(*self.values)]

    def to_ray(self, **common_tag: str) -> Any:
        """Return the metric as Ray publishes it, with the value of the common tag; counters begin at 0.

        A series that began with its first addition would be there first at 1, and Prometheus' `increase` and `rate`
        see no increase in a series that was not there before.
        """
        made: Any
        if self.kind == "counter":
            made = ray_metrics.Counter(self.name, self.description, self.tags)
        elif self.kind == "gauge":
            made = ray_metrics.Gauge(self.name, self.description, self.tags)
        else:
            made = ray_metrics.Histogram(self.name, self.description, list(self.boundaries), self.tags)
        made.set_default_tags(common_tag)
        for tags in self.first_series():
            made._record(0.0, tags)  # `inc` refuses 0
        return made


@dataclass(frozen=True)
class _Table:
    """Metrics in the order of their declaration, which all have one tag in common.

    With `has_vllms_names` vLLM has metrics of the same names, with "vllm:" in place of "dray_", unless told otherwise.
    """

    common_tag: str
    has_vllms_names: bool = False
    metrics: list[Metric] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        name: str,
        unit: str,
        description: str,
        *tags: str,
        boundaries: tuple[float, ...] = (),
        values: tuple[tuple[str, ...], ...] = (),
        vllm: tuple[str, ...] | None = None,
        is_asked_for: bool = False,
    ) -> Metric:
        tags = self.common_tag, *tags
        if vllm is None:
            vllm = (name.replace("dray_", "vllm:"),) if self.has_vllms_names else ()
        self.metrics.append(Metric(name, kind, unit, description, tags, boundaries, values, vllm, is_asked_for))
        return self.metrics[-1]

    counter, gauge = partialmethod(add, "counter"), partialmethod(add, "gauge")
    histogram = partialmethod(add, "histogram")


_run = _Table("run")  # the last part of the output's name
ROWS = _run.counter(
    "dray_rows",
    "rows",
    "Input rows done, by outcome: generated (with all their samples) or failed.",
    "outcome",
    values=(("generated", "failed"),),
)
ERRORS = _run.counter(
    "dray_errors",
    "rows",
    "Failed rows by the stage they failed at: read, template, encode, params, generate or program.",
    "stage",
    values=(get_args(Stage),),
)
GENERATIONS = _run.counter("dray_generations", "samples", "Samples written.")
PROMPT_TOKENS = _run.counter("dray_prompt_tokens", "tokens", "Prompt tokens, once a row whatever its samples.")
CACHED_PROMPT_TOKENS = _run.counter(
    "dray_cached_prompt_tokens",
    "tokens",
    "Prompt tokens copied from another row instead of computed, over all samples.",
)
OUTPUT_TOKENS = _run.counter("dray_output_tokens", "tokens", "Tokens written.")
ROUNDS = _run.counter("dray_rounds", "row rounds", "Rounds, counted once for each sample in them.")
DRAFT_TOKENS = _run.counter("dray_draft_tokens", "tokens", "Tokens drafted.")
ACCEPTED_TOKENS = _run.counter("dray_accepted_tokens", "tokens", "Drafted tokens that were accepted.")
ACCEPTED_BY_POSITION = _run.counter(
    "dray_accepted_tokens_by_position", "tokens", "The same by position in the draft, from 0.", "position"
)
UNITS_COMMITTED = _run.counter("dray_units_committed", "units", "Work units whose part was written.")
UNITS_REPEATED = _run.counter("dray_units_repeated", "units", "Attempts at a unit beyond its first, in a command.")
UNITS_BACKED_UP = _run.counter(
    "dray_units_backed_up", "units", "Backups of units under way elsewhere, begun because a process was idle."
)
UNIT_SECONDS = _run.histogram(
    "dray_unit_seconds",
    "seconds",
    "Time of the attempts that wrote a part; Ray makes up the sum from the buckets.",
    boundaries=(1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 10800),
)
WORKER_DEATHS = _run.counter(
    "dray_worker_deaths",
    "processes",
    "Processes that died over units, each once; noticed when such a unit was begun again.",
)
STORAGE_RETRIES = _run.counter("dray_storage_retries", "operations", "Storage operations tried again.")
OUT_OF_MEMORY = _run.counter(
    "dray_out_of_memory", "times", "Memory ran out in an engine, which goes on with half its slots."
)
ENGINE_BUSY_SECONDS = _run.counter(
    "dray_engine_busy_seconds",
    "seconds",
    "Time in an engine's steps: reading prompts, and rounds. The rest of its life it waited.",
)
ENGINE_ROUND_SECONDS = _run.counter(
    "dray_engine_round_seconds", "seconds", "Time in rounds: drafting, scoring, verifying, committing."
)
ENGINE_SLOTS = _run.gauge("dray_engine_slots", "samples", "Samples that an engine can run at once.")
ENGINE_RUNNING = _run.gauge("dray_engine_running", "samples", "Samples that an engine runs.")
ENGINE_WAITING = _run.gauge("dray_engine_waiting", "samples", "Samples that wait for a slot of an engine.")
DRAFT_LOSSES = _run.counter(
    "dray_draft_actor_losses", "times", "An engine lost its draft actor, and went on without drafts."
)
DRAFT_TIMEOUTS = _run.counter("dray_draft_timeouts", "drafts", "Drafts of draft actors that came too late, or never.")
DRAFT_BYTES_SENT = _run.counter(
    "dray_draft_bytes_sent", "bytes", "Sent to draft actors: committed tokens, and new rows' prompts."
)
DRAFT_BYTES_RECEIVED = _run.counter("dray_draft_bytes_received", "bytes", "Received from draft actors: drafts.")
DRAFT_WAIT_SECONDS = _run.counter(
    "dray_draft_wait_seconds", "seconds", "Time that engines waited for drafts of draft actors."
)
UNITS_LEFT = _run.gauge("dray_units_left", "units", "Units that the command has still to do; from the driver.")
ROWS_LEFT = _run.gauge("dray_rows_left", "rows", "Rows in them.")

METRICS: tuple[Metric, ...] = tuple(_run.metrics)

_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_served = _Table("model_name", has_vllms_names=True)
HTTP_REQUESTS = _served.counter(
    "dray_http_requests",
    "requests",
    "Requests by the status of their answers, refused ones too; 499 if the client left before the end.",
    "route",
    "method",
    "status",
    vllm=(),
    values=(  # those that an alert is about
        ("/v1/completions", "/v1/chat/completions", "/v1/responses"),
        ("POST",),
        ("200", "500", "503", "504"),
    ),
)
REQUESTS_RUNNING = _served.gauge("dray_num_requests_running", "requests", "Requests that are being written.")
REQUESTS_WAITING = _served.gauge(
    "dray_num_requests_waiting", "requests", "Requests that no slot has been found for yet."
)
REQUESTS_FINISHED = _served.counter(
    "dray_requests_finished",
    "requests",
    "Requests to generate, by how they ended: stop, length, cancelled (the client left), rejected (the queue was "
    "full), timeout or error.",
    "finished_reason",
    values=(("stop", "length", "cancelled", "rejected", "timeout", "error"),),
    vllm=("vllm:request_success",),
)
QUEUE_SECONDS = _served.histogram(
    "dray_request_queue_time_seconds", "seconds", "From a request to its slot.", boundaries=_LATENCIES
)
FIRST_TOKEN_SECONDS = _served.histogram(
    "dray_time_to_first_token_seconds", "seconds", "From a request to its first tokens.", boundaries=_LATENCIES
)
BETWEEN_TOKENS_SECONDS = _served.histogram(
    "dray_inter_token_latency_seconds",
    "seconds",
    "Between tokens of a sample; those that come together share the time since the last ones.",
    boundaries=_LATENCIES,
    vllm=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
)
REQUEST_SECONDS = _served.histogram(
    "dray_e2e_request_latency_seconds", "seconds", "From a request to its end.", boundaries=_LATENCIES
)
SERVED_PROMPT_TOKENS = _served.counter(
    "dray_served_prompt_tokens",
    "tokens",
    "Prompt tokens, once a prompt whatever its samples; none of a prompt that nothing was written to (rejected, "
    "ended before its first token, or only scored).",
    vllm=("vllm:prompt_tokens", "vllm:prefix_cache_queries"),
)
SERVED_CACHED_TOKENS = _served.counter(
    "dray_served_cached_prompt_tokens",
    "tokens",
    "Those of them that were copied from another request instead of computed; none of a request that did not finish.",
    vllm=("vllm:prefix_cache_hits",),
)
SERVED_GENERATION_TOKENS = _served.counter(
    "dray_served_generation_tokens",
    "tokens",
    "Tokens written, also for a client that left before the end.",
    vllm=("vllm:generation_tokens",),
)
SERVED_DRAFTS = _served.counter(
    "dray_spec_decode_num_drafts", "drafts", "Drafts: one for each sample and round in which one was made."
)
SERVED_DRAFT_TOKENS = _served.counter("dray_spec_decode_num_draft_tokens", "tokens", "Tokens drafted.")
SERVED_ACCEPTED_TOKENS = _served.counter(
    "dray_spec_decode_num_accepted_tokens", "tokens", "Drafted tokens that were accepted."
)
SERVED_ACCEPTED_BY_POSITION = _served.counter(
    "dray_spec_decode_num_accepted_tokens_per_pos", "tokens", "The same by position in the draft, from 0.", "position"
)
KV_CACHE_USAGE = _served.gauge(
    "dray_kv_cache_usage",
    "share",
    "Share of the positions of all engines (slots times context) that hold tokens, from 0 to 1; on the page alone.",
    vllm=("vllm:kv_cache_usage_perc",),
    is_asked_for=True,
)

SERVING_METRICS: tuple[Metric, ...] = tuple(_served.metrics)
