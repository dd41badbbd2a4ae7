"""Drafts over one target, measured in turns with plain decoding."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import Table, interleaved
from decoding import Engine, EngineOptions, Sequence
from decoding.engine.load import Parts, load_parts
from decoding.network.target import Target
from jobs.work.tuning.engine_turns import EnginePass, engine_way


def load_beside(
    target: str, drafts: Iterable[tuple[str | None, EngineOptions]], device: str = "cpu", dtype: str = "float32"
) -> list[Parts]:
    """Return what an engine with each of these drafts is made of, over the weights of one target."""
    found: list[Parts] = []
    shared: Target | None = None
    for draft, options in drafts:
        parts = load_parts(target, draft, options, device, dtype, target_model=shared and shared.share())  # type: ignore[arg-type]
        shared = parts.target
        found.append(parts)
    return found


def over_plain(
    parts: Mapping[str, Parts], options: Seq[EngineOptions], rows: Callable[[], list[Sequence]], repeats: int
) -> list[dict[str, Any]]:
    """Return a line for each draft, by name, over the first one's speed. All must write the same text.

    Fresh engines are made for each repeat, untimed, so that nothing learned from finished texts helps the next.
    """
    batch = options[0].slots
    ways = {
        name: engine_way(partial(Engine.over, own, how), lambda _: rows())
        for (name, own), how in zip(parts.items(), options, strict=True)
    }
    table = interleaved(ways, repeats, f"{batch} rows at once")
    first = next(iter(ways))
    for name in ways:
        require_same_text(table, name, first)
    return [line_of(table, name, first) | {"rows_at_once": batch} for name in ways]


def require_same_text(table: Table[EnginePass], name: str, other: str) -> None:
    """Raise AssertionError if a way wrote another text than another one."""
    for own, its in zip(table.passes[name], table.passes[other], strict=True):
        assert own.outputs == its.outputs, f"{name} wrote another text than {other}"


def line_of(table: Table[EnginePass], name: str, first: str) -> dict[str, Any]:
    """Return what a way counted and how fast it was, over the speed of the first way."""
    counts, ratios = table.passes[name][-1].counts, table.ratios(name, first)
    return {
        "draft": name,
        "tokens_a_round": counts.mean_acceptance_length or 1.0,
        "acceptance_rate": counts.acceptance_rate,
        "tokens_per_second": table.speed(name),
        "times_plain": median(ratios),
        "least_times_plain": min(ratios),
    }
