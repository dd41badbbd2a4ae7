"""What this project wants to reach on two CPU cores, beside what a run found. Ratios within the run only."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchmarks.decoder.results import Report, Result

EFFICIENCY = {1: 0.90, 4: 0.90, 16: 0.90}
SPEEDUP = {1: 2.2, 4: 1.9, 16: 1.4}
SHARE_OF_IDEAL = 0.90  # of the ideal speed-up, which also meets a speed-up
BANDWIDTH_SHARE = {8: 0.60}
OVER_OPENVINO, OVER_VLLM = 1.2, 1.5  # at batch 8 and 32, over the best of each
OVER_ASSISTED, OVER_BATCHED = 15.0, 3.0  # at batch 16, over transformers
AGAINST_BEST_FIXED, AGAINST_PLAIN = 0.97, 0.98
PER_ROW = 1.10  # mixed acceptance: over the best common length
HYBRID = 1.3  # tokens a round over the draft model alone
MEMORY = 1.15


@dataclass(frozen=True)
class Target:
    """A figure, what it should be and what it is."""

    name: str
    wanted: float
    found: float
    note: str = ""
    at_most: bool = False
    or_else: bool = False  # met in another way, which the note says

    @property
    def is_met(self) -> bool:
        return self.or_else or (self.found < self.wanted if self.at_most else self.found >= self.wanted)


def judge(report: Report) -> list[Target]:
    """Return the targets whose configurations ran; speculation means adaptive drafting by the draft model."""
    return [target for result in report.results if result.seconds for target in _judge_one(report, result)]


def _judge_one(report: Report, result: Result) -> Iterator[Target]:
    batch, plain = result.batch, report.find("plain", result.batch)
    if result.name == "plain":
        share = report.bandwidth_share(result)
        if batch in BANDWIDTH_SHARE and share is not None:
            yield Target(f"share of the bandwidth limit, {result.label}", BANDWIDTH_SHARE[batch], share)
    if result.name in ("plain", "adaptive"):
        if batch in EFFICIENCY and result.efficiency is not None:
            yield Target(f"engine efficiency, {result.label}", EFFICIENCY[batch], result.efficiency)
        if result.memory:
            yield Target(f"peak memory, {result.label}", MEMORY, result.memory.ratio, at_most=True)
    if result.name != "adaptive":
        return
    speedup, ideal = result.speedup(plain), result.ideal_speedup(plain)
    if speedup is not None:
        yield Target(f"adaptive over plain, batch {batch}", AGAINST_PLAIN, speedup)
        if batch in SPEEDUP and report.options["corpus"] == "random":
            share = speedup / ideal if ideal else 0.0
            note = f"{share:.0%} of this run's ideal, {ideal:.2f}" if ideal else ""
            yield Target(f"speed-up, batch {batch}", SPEEDUP[batch], speedup, note, or_else=share >= SHARE_OF_IDEAL)
    yield from _judge_against_others(report, result)


def _judge_against_others(report: Report, result: Result) -> Iterator[Target]:
    batch = result.batch
    fixed = best_fixed(report, batch)
    if fixed:
        wanted = PER_ROW if report.options["corpus"] == "mixed" else AGAINST_BEST_FIXED
        yield _over(f"adaptive over the best fixed length, batch {batch}", wanted, result, fixed)
    ours = max(filter(None, (result, report.find("plain", batch))), key=_speed)
    if batch in (8, 32):
        for system, wanted in (("openvino", OVER_OPENVINO), ("vllm", OVER_VLLM)):
            if best := _best(report, batch, f"{system}*"):
                yield _over(f"over {system}'s best, batch {batch}", wanted, ours, best)
    if batch == 16:
        if best := _best(report, 1, "transformers-assisted*"):
            yield _over("over transformers assisted (batch 1), batch 16", OVER_ASSISTED, ours, best)
        if batched := report.find("transformers-batched", 16):
            yield _over("over transformers batched, batch 16", OVER_BATCHED, ours, batched)
    hybrid = report.find("adaptive-hybrid", batch)
    if hybrid and report.options["samples"] > 1 and hybrid.tokens_per_round and result.tokens_per_round:
        ratio = hybrid.tokens_per_round / result.tokens_per_round
        yield Target(f"hybrid over draft model, tokens a round, batch {batch}", HYBRID, ratio)


def best_fixed(report: Report, batch: int) -> Result | None:
    """Return the fastest fixed length of the draft model at this batch."""
    return _best(report, batch, "fixed-?")


def _best(report: Report, batch: int, names: str) -> Result | None:
    fits = [r for r in report.results if r.batch == batch and r.seconds and fnmatchcase(r.name, names)]
    return max(fits, key=_speed, default=None)


def _over(name: str, wanted: float, ours: Result, other: Result) -> Target:
    found = ours.speedup(other)
    assert found is not None, "both have seconds"
    return Target(name, wanted, found, f"{ours.name} over {other.label}")


def _speed(result: Result) -> float:
    return result.tokens_per_second or 0.0
