"""The documentation lists the declared metrics, and Ray gets what was counted."""

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import promql_parser as promql
import pytest

from actors import metric_table as metrics
from actors.drafts.link import LinkStats
from actors.engine.loop import EngineStats
from actors.engines.loading import publish_engine
from actors.heartbeat import Heartbeat
from actors.metric_table import METRICS, SERVING_METRICS, Metric
from actors.metrics import Metrics
from endpoint.service.metrics import FinishReason
from pipeline.errors import Stage
from pipeline.storage.retries import RetryPolicy

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {"metrics.md": METRICS, "serving.md": SERVING_METRICS}
PREFIXES = {"metrics.md": ["ray_"], "serving.md": ["", "ray_"]}  # Ray adds one, the page `/metrics` none


def row_of(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {', '.join(metric.tags)} | {metric.description} |"


@pytest.mark.parametrize("document", TABLES)
def test_the_documentation_lists_the_declared_metrics_and_no_others(document):
    table = [line for line in (DOCS / document).read_text().splitlines() if line.startswith("| `dray_")]
    assert table == [row_of(metric) for metric in TABLES[document]]


@pytest.mark.parametrize("declared", TABLES.values(), ids=TABLES.keys())
def test_every_metric_is_declared_once_and_has_the_prefix(declared):
    assert len({metric.name for metric in declared}) == len(declared)
    assert all(re.fullmatch(r"dray_[a-z0-9_]+", metric.name) for metric in declared)


def exported(document: str) -> dict[str, set[str]]:
    """The labels of each series of a document's metrics, by its name."""
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {
        f"{prefix}{metric.name}{suffix}": set(metric.tags) | ({"le"} if suffix == "_bucket" else set())
        for prefix in PREFIXES[document]
        for metric in TABLES[document]
        for suffix in suffixes[metric.kind]
    }


@pytest.mark.parametrize("document", TABLES)
def test_the_documentation_names_metrics_that_exist(document):
    text = (DOCS / document).read_text()
    named = {name for name in re.findall(r"\b(?:ray_)?dray_\w+", text) if not name.endswith("_")}
    assert named
    assert named <= exported(document).keys() | {metric.name for metric in TABLES[document]}


def queries() -> list[tuple[str, str]]:
    """The documents' queries, each with its document."""
    return [
        (document, line)
        for document in TABLES
        for block in re.findall(r"^```promql\n(.*?)^```$", (DOCS / document).read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if not line.startswith("#")
    ]


@pytest.mark.parametrize(("document", "query"), queries())
def test_each_query_in_the_documentation_asks_for_series_and_labels_that_exist(document, query):
    series, selectors = exported(document), list[promql.VectorSelector]()
    grouped_by: set[str] = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.MatrixSelector):
            selectors.append(node.vector_selector)
        elif isinstance(node, promql.VectorSelector):
            selectors.append(node)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            grouped_by.update(node.modifier.labels)

    promql.walk(promql.parse(query), visit)
    assert selectors, "it asks for nothing"
    assert {selector.name for selector in selectors} <= series.keys()
    for selector in selectors:
        assert {matcher.name for matcher in selector.matchers.matchers} <= series[selector.name or ""]
    assert grouped_by <= set().union(*(series[selector.name or ""] for selector in selectors))


def test_the_documentation_has_its_queries():
    counts = Counter(document for document, _ in queries())
    assert counts["metrics.md"] > 8
    assert counts["serving.md"] > 0


class Published:
    """Ray's side of a metric, which keeps what it was given."""

    def __init__(self, *_: object, **common_tag: str) -> None:
        assert common_tag == {"run": "demo"}
        self.given: list[float] = []

    def inc(self, amount: float, tags: dict[str, str]) -> None:
        assert amount > 0, "Ray raises"
        self.given.append(amount)

    def set(self, value: float) -> None:
        self.given = [value]


Given = Callable[[Metrics, Metric], list[float]]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Given:
    monkeypatch.setattr(Metric, "to_ray", lambda metric, **tag: Published(**tag))
    return lambda of, metric: of._of_ray[metric.name].given


def test_every_counter_begins_at_0_with_all_values_of_its_tags_that_are_known():
    counters = {metric.name: metric for metric in (*METRICS, *SERVING_METRICS) if metric.kind == "counter"}
    open_ended = {
        "dray_accepted_tokens_by_position",
        "dray_spec_decode_num_accepted_tokens_per_pos",
    }  # as many as drafted
    assert {name for name, metric in counters.items() if not metric.first_series()} == open_ended
    assert metrics.WORKER_DEATHS.first_series() == [{}]
    assert metrics.ROWS.first_series() == [{"outcome": "generated"}, {"outcome": "failed"}]
    assert [tags["stage"] for tags in metrics.ERRORS.first_series()] == list(get_args(Stage))
    reasons = [tags["finished_reason"] for tags in metrics.REQUESTS_FINISHED.first_series()]
    assert set(reasons) == set(get_args(FinishReason))
    assert {"route": "/v1/completions", "method": "POST", "status": "500"} in metrics.HTTP_REQUESTS.first_series()


def test_a_total_is_published_as_its_increases(published):
    of = Metrics("demo")
    for total in (2.0, 2.0, 5.0, 3.0, 6.0):
        of.add_up_to(metrics.ENGINE_BUSY_SECONDS, total)
    assert published(of, metrics.ENGINE_BUSY_SECONDS) == [2.0, 3.0, 1.0]


def test_retries_before_a_run_are_not_counted_in_it(published):
    def fail_once() -> None:
        errors: list[OSError] = [TimeoutError(errno.ETIMEDOUT, "late")]

        def operation() -> None:
            if errors:
                raise errors.pop()

        RetryPolicy(first_wait_s=0.001).call("reading", operation)

    fail_once()
    of = Metrics("demo")
    of.add_storage_retries()
    assert published(of, metrics.STORAGE_RETRIES) == []
    fail_once()
    for _ in range(2):
        of.add_storage_retries()
    assert published(of, metrics.STORAGE_RETRIES) == [1]


def test_a_heartbeat_beats_until_it_ends_and_once_more():
    beats, third = [], threading.Event()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 3:
            third.set()

    with Heartbeat(beat, every_s=0.001):
        assert third.wait(30)
    ended = len(beats)
    with Heartbeat(beat, every_s=600):
        pass
    assert len(beats) == ended + 2, "one at the start, one at the end"


def test_the_stats_of_an_engine_and_of_its_links_to_draft_actors_are_published_as_they_are(published):
    of = Metrics("demo")
    first = EngineStats(8, 5, 3, busy_seconds=2.0, round_seconds=1.5, num_out_of_memory=0)
    later = EngineStats(4, 4, 2, busy_seconds=6.0, round_seconds=2.0, num_out_of_memory=1)
    loop: Any = SimpleNamespace(stats=[later, first].pop)
    crossed = LinkStats(num_losses=1, num_timeouts=2, num_bytes_sent=30, num_bytes_received=40, wait_seconds=0.5)
    links: Any = SimpleNamespace(stats=crossed)
    heartbeat = publish_engine(of, loop, links)
    heartbeat.beat()
    heartbeat.beat()
    assert {metric.name: published(of, metric) for metric in METRICS if published(of, metric)} == {
        "dray_engine_slots": [4],
        "dray_engine_running": [4],
        "dray_engine_waiting": [2],
        "dray_engine_busy_seconds": [2.0, 4.0],
        "dray_engine_round_seconds": [1.5, 0.5],
        "dray_out_of_memory": [1],
        "dray_draft_actor_losses": [1],
        "dray_draft_timeouts": [2],
        "dray_draft_bytes_sent": [30],
        "dray_draft_bytes_received": [40],
        "dray_draft_wait_seconds": [0.5],
    }
