"""The search for the fastest setting, and the choice among what was measured. How that is done is not known here."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Protocol

from jobs.work.tuning.setting import Axes, Setting

_MOST_REPEATS = 3  # of the best settings of a stage
_NUM_LEADERS = 2  # settings that go from stage to stage
_NUM_FINALISTS = 3
_MOST_FINALS = 7
# The parts of the time for the repeats of each stage. A first repeat may take more, but leaves some to later stages.
_STAGES, _MORE_AT_FIRST, _BEFORE_FINAL = (0.15, 0.25, 0.45, 0.6, 0.7), 0.3, 0.75


class Rates(Protocol):
    """Measured rates, over that of the plain setting."""

    def run(self, stage: str, settings: Seq[Setting], until: float) -> bool:
        """Measure each setting once more, the first ones first; return False at the end of this part of the time."""

    def times_plain(self, setting: Setting) -> float | None:
        """Return the median so far; None for a setting that was not measured."""


def search(plain: Setting, axes: Axes, rates: Rates) -> None:
    """Measure along one axis after the other, each from the best settings so far, and then all around the best one.

    In each stage the slower half drops out after every repeat. What is left of the time goes to the few best of all.
    """
    leaders, seen = [plain], {plain: None}
    for until, (name, values) in zip(_STAGES, axes.items(), strict=False):
        if len(values) > 1:
            tried = dict.fromkeys([*leaders, *(replace(leader, **each) for leader in leaders for each in values)])
            leaders, seen = race(name, list(tried), rates, until), seen | tried
    around = dict.fromkeys([*leaders, *(replace(leaders[0], **each) for values in axes.values() for each in values)])
    race("all around the best", list(around), rates, _STAGES[-1])
    finalists = fastest({**seen, **around}, rates)[:_NUM_FINALISTS]
    for _ in range(_MOST_FINALS):
        if not rates.run("final", finalists, 1.0):
            break


def race(stage: str, settings: Seq[Setting], rates: Rates, until: float) -> list[Setting]:
    """Return the best of these settings, the fastest first."""
    left = list(settings)
    for repeat in range(_MOST_REPEATS):
        at_first = max(until, min(until + _MORE_AT_FIRST, _BEFORE_FINAL))
        if not rates.run(stage, left, at_first if repeat == 0 else until):
            break
        left = fastest(left, rates)[: max(_NUM_LEADERS, (1 + len(left)) // 2)]
    return fastest(settings, rates)[:_NUM_LEADERS]


def choose(own: Setting, measured: Iterable[Setting], rates: Rates, noise: float) -> Setting:
    """Return the setting to take: of all that are as fast as the fastest, but for the noise, the simplest.

    Plain decoding is simpler than any draft, and what is the run's own simpler than what is not. `noise` is the share
    by which two equal settings may differ.
    """
    best, *others = fastest(measured, rates)
    as_fast = [each for each in (best, *others) if _rate(each, rates) * (1 + noise) >= _rate(best, rates)]
    return min(as_fast, key=lambda each: (each.drafter != "none", len(each.changes(own)), -_rate(each, rates)))


def fastest(settings: Iterable[Setting], rates: Rates) -> list[Setting]:
    """Return the settings that were measured, the fastest first."""
    known = [setting for setting in settings if rates.times_plain(setting) is not None]
    return sorted(known, key=lambda setting: -_rate(setting, rates))


def _rate(setting: Setting, rates: Rates) -> float:
    rate = rates.times_plain(setting)
    assert rate is not None, "only measured settings are compared"
    return rate
