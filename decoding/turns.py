"""Turns: ways to do the same work, timed beside each other, so that other work on the machine slows all alike."""

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One repeat of one way to do something."""

    seconds: float
    done: float = 1.0  # tokens, rows, ...


P = TypeVar("P", bound=Pass)
# A way gets the number of a repeat. It gives way to the others at each `yield`, and returns what its repeat took.
Way = Callable[[int], Generator[None, None, P]]


def one_repeat(ways: Mapping[str, Way[P]], repeat: int) -> dict[str, P]:
    """Return what each way took, taking turns in a random order, so that other work on the machine slows all alike."""
    chance, running = random.Random(repeat), {name: way(repeat) for name, way in ways.items()}
    found: dict[str, P] = {}
    while running:
        for name in chance.sample(list(running), len(running)):
            try:
                next(running[name])
            except StopIteration as end:
                found[name] = end.value
                del running[name]
    return found


def whole(work: Callable[[int], P]) -> Way[P]:
    """Return a way that does all its work in one turn."""

    def way(repeat: int) -> Generator[None, None, P]:
        return work(repeat)
        yield

    return way


@dataclass(frozen=True)
class Table(Generic[P]):
    """The repeats of some ways; every speed and every ratio is that of the same medians."""

    passes: dict[str, list[P]]

    def ratios(self, name: str, other: str, seconds: str = "seconds") -> list[float]:
        """Return how many times the speed of `other` a way had, in each repeat."""
        return paired_ratios(self.speeds(name, seconds), self.speeds(other, seconds))

    def speed(self, name: str) -> float:
        """Return what a way does in a second: the first way's median speed, times the median of the paired ratios."""
        first = next(iter(self.passes))
        return median(self.speeds(first)) * median(self.ratios(name, first))

    def speeds(self, name: str, seconds: str = "seconds") -> list[float]:
        """Return what a way did in a second, by this field of its repeats."""
        return [each.done / getattr(each, seconds) for each in self.passes[name]]


def paired_ratios(upper: Iterable[float], lower: Iterable[float]) -> list[float]:
    """Return the ratio within each repeat."""
    return [a / b for a, b in zip(upper, lower, strict=True)]
