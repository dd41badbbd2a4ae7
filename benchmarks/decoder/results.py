"""Result and Report: what was measured, and every figure that follows from it.

A figure is computed here and nowhere else. Seconds are paired: the run, its forwards alone and plain decoding were
timed in the same repeat, so a ratio is the median over repeats of the ratio within each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.decoder.counts.launches import Launches
from benchmarks.decoder.counts.memory import Memory
from benchmarks.decoder.counts.work import Work

FORMAT = 1
_FIGURES = (
    "tokens_per_second",
    "spread",
    "tokens_per_round",
    "acceptance_rate",
    "drafted_per_round",
    "acceptance_by_position",
    "ideal_tokens_per_second",
    "efficiency",
    "bytes_per_round",
    "roofline_tokens_per_second",
    "roofline_share",
    "round_roofline_share",
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration at one batch size. Counts are those of one repeat."""

    name: str
    batch: int
    num_rows: int = 0
    num_output_tokens: int = 0
    seconds: tuple[float, ...] = ()  # of each repeat
    num_rounds: int = 0  # summed over rows
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_per_position: tuple[int, ...] = ()  # rounds with at least this many draft tokens
    tried_per_position: tuple[int, ...] = ()  # those in which all earlier draft tokens were accepted
    accepted_per_position: tuple[int, ...] = ()
    raw_prefill: tuple[float, ...] = ()  # seconds of the forwards alone, of each repeat
    raw_target: tuple[float, ...] = ()
    raw_draft: tuple[float, ...] = ()
    num_target_forwards: int = 0  # without prefill
    work: Work | None = None  # of one repeat; None where the models' sizes cannot be counted
    launches_per_round: Launches | None = None
    equal_to_transformers: float | None = None  # share of the rows that were compared, in the pass with the fewest
    equal_to_plain: float | None = None  # the same with plain decoding's first text
    memory: Memory | None = None

    @property
    def label(self) -> str:
        return f"{self.name}@{self.batch}"

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens per second of the median repeat."""
        return self.num_output_tokens / median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """How far the slowest repeat is from the fastest, relative to the median."""
        return (max(self.seconds) - min(self.seconds)) / median(self.seconds) if self.seconds else None

    @property
    def tokens_per_round(self) -> float | None:
        """Output tokens a row gains by a target forward."""
        return self.num_output_tokens / self.num_rounds if self.num_rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def drafted_per_round(self) -> float | None:
        """Draft tokens of a row in a round."""
        return self.num_draft_tokens / self.num_rounds if self.num_rounds else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Chance that a draft token stands if all before it do."""
        return tuple(
            accepted / tried
            for accepted, tried in zip(self.accepted_per_position, self.tried_per_position, strict=True)
            if tried
        )

    @property
    def raw_seconds(self) -> tuple[float, ...]:
        """The forwards alone, of each repeat."""
        return tuple(map(sum, zip(self.raw_prefill, self.raw_target, self.raw_draft, strict=True)))

    @property
    def ideal_tokens_per_second(self) -> float | None:
        """If there were nothing but the forwards that ran."""
        return self.num_output_tokens / median(self.raw_seconds) if self.raw_seconds else None

    @property
    def efficiency(self) -> float | None:
        """The forwards' share of the time."""
        return _median_ratio(self.raw_seconds, self.seconds)

    @property
    def bytes_per_round(self) -> float | None:
        """Bytes of weights, keys and values that a round reads."""
        return self.work.round_bytes / self.num_target_forwards if self.work and self.num_target_forwards else None

    @property
    def roofline_tokens_per_second(self) -> float | None:
        """If the GPU did the run's forwards, prefill included, as fast as its memory and its arithmetic allow."""
        seconds = self.work.roofline_seconds if self.work else None
        return self.num_output_tokens / seconds if seconds else None

    @property
    def roofline_share(self) -> float | None:
        """Tokens per second over those of the roofline."""
        speed, limit = self.tokens_per_second, self.roofline_tokens_per_second
        return speed / limit if speed and limit else None

    @property
    def round_roofline_share(self) -> float | None:
        """The least time of the rounds on this GPU over the time they took: everything but prefill."""
        least = self.work.roofline_round_seconds if self.work else None
        return least / (self.step_seconds * self.num_target_forwards) if least and self.step_seconds else None

    @property
    def step_seconds(self) -> float | None:
        """Time of a round, everything but prefill."""
        if not self.num_target_forwards or not self.raw_prefill:
            return None
        rounds = [wall - prefill for wall, prefill in zip(self.seconds, self.raw_prefill, strict=True)]
        return median(rounds) / self.num_target_forwards

    def speedup(self, other: "Result | None") -> float | None:
        """Return tokens per second over those of `other`."""
        return self._over(other, other.seconds, self.seconds) if other else None

    def ideal_speedup(self, other: "Result | None") -> float | None:
        """Return the speed-up if both were nothing but forwards."""
        return self._over(other, other.raw_seconds, self.raw_seconds) if other else None

    def _over(self, other: "Result", seconds: Sequence[float], own_seconds: Sequence[float]) -> float | None:
        ratio = _median_ratio(seconds, own_seconds)
        return None if ratio is None else ratio * self.num_output_tokens / other.num_output_tokens


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the benchmark."""

    command: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    pair: dict[str, Any]
    options: dict[str, Any]
    copy_bandwidth: float  # bytes a second, read and written counted both
    read_bandwidth: float
    target_bytes: int  # read by every forward: all weights but an input embedding that is not also the head
    prompt_tokens: dict[str, float] = field(default_factory=dict)  # shortest, mean and longest prompt
    results: tuple[Result, ...] = ()

    @property
    def place(self) -> str:
        """What it ran on, in short."""
        return self.machine.get("gpu") or f"{self.machine['processor']}, {self.machine['threads']} threads"

    def find(self, name: str, batch: int) -> Result | None:
        """Return the result of this name and batch if it has times."""
        return next((r for r in self.results if r.name == name and r.batch == batch and r.seconds), None)

    def best_fixed(self, batch: int) -> Result | None:
        """Return the fastest fixed length of the draft model at this batch."""
        fits = [r for r in self.results if r.batch == batch and r.seconds and fnmatchcase(r.name, "fixed-?")]
        return max(fits, key=lambda result: result.tokens_per_second or 0.0, default=None)

    def bandwidth_share(self, result: Result) -> float | None:
        """Return, for plain decoding, the time to read the weights at the speed of a copy, over that of a step."""
        if result.name != "plain" or result.step_seconds is None:
            return None
        return self.target_bytes / self.copy_bandwidth / result.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it, with the figures beside what they follow from."""
        results = [vars(result) | {"figures": self.figures(result)} for result in self.results]
        return {"format": FORMAT} | vars(self) | {"results": results}

    def figures(self, result: Result) -> dict[str, Any]:
        """Return every figure of a result, None where it has none."""
        plain = self.find("plain", result.batch)
        return {name: getattr(result, name) for name in _FIGURES} | {
            "speedup": result.speedup(plain),
            "ideal_speedup": result.ideal_speedup(plain),
            "bandwidth_share": self.bandwidth_share(result),
            "memory_ratio": result.memory.ratio if result.memory else None,
        }


def share_equal(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float | None:
    """Share of rows that are the same, over as many rows as both have."""
    pairs = list(zip(ours, theirs, strict=False))
    return sum(list(a) == list(b) for a, b in pairs) / len(pairs) if pairs else None


def per_position(rounds: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return drafted, tried and accepted tokens per position, from (drafted, accepted) of every row and round."""
    width = max((drafted for drafted, _ in rounds), default=0)
    drafted = tuple(sum(num_drafted > j for num_drafted, _ in rounds) for j in range(width))
    accepted = tuple(sum(num_accepted > j for _, num_accepted in rounds) for j in range(width))
    tried = tuple(
        sum(num_drafted > j and num_accepted >= j for num_drafted, num_accepted in rounds) for j in range(width)
    )
    assert all(a >= b for a, b in pairwise(drafted)), "a round that drafts k tokens drafts k - 1"
    return drafted, tried, accepted


def _median_ratio(upper: Sequence[float], lower: Sequence[float]) -> float | None:
    ratios = [a / b for a, b in zip(upper, lower, strict=False)]
    return median(ratios) if ratios else None
