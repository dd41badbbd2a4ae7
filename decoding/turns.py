"""Turns: ways to do the same work, timed beside each other, so that other work on the machine slows all alike."""

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar


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
