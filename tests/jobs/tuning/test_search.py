"""The search finds a setting near the best of all without measuring all, and takes no draft where none pays."""

from dataclasses import replace
from itertools import product

import pytest

from jobs.work.tuning.search import choose, fastest, search
from jobs.work.tuning.setting import Axes, Setting

PLAIN = Setting(drafter="none", draft=None, slots=16, threads=1, dtype="float32")
NGRAM, SUFFIX = (replace(PLAIN, drafter=name) for name in ("ngram", "suffix"))
MODEL = replace(PLAIN, drafter="model", draft="draft")
AXES: Axes = {
    "dtype": [{"dtype": "float32"}, {"dtype": "bfloat16"}],
    "threads": [{"threads": 1}, {"threads": 2}],
    "drafter": [{"drafter": each.drafter, "draft": each.draft} for each in (PLAIN, NGRAM, SUFFIX, MODEL)],
    "slots": [{"slots": number} for number in (8, 16, 32)],
}
GRID = [
    replace(PLAIN, **{name: value for each in values for name, value in each.items()})
    for values in product(*AXES.values())
]


class Planted:
    """Rates that are planted; each repeat costs a part of the time."""

    def __init__(self, rates: dict[Setting, float], costs: float = 0.0) -> None:
        self.rates, self.costs, self.spent = rates, costs, 0.0
        self.measured: dict[Setting, int] = {}

    def run(self, stage: str, settings: list[Setting], until: float) -> bool:
        for setting in settings:
            if self.spent + self.costs > until:
                return False
            self.spent += self.costs
            self.measured[setting] = self.measured.get(setting, 0) + 1
        return True

    def times_plain(self, setting: Setting) -> float | None:
        return self.rates[setting] if setting in self.measured else None


def _of_all(rates: dict[Setting, float]) -> Planted:
    planted = Planted(rates)
    planted.run("all", list(rates), 1.0)
    return planted


def _rate(setting: Setting, pays: float) -> float:
    """Return a rate where drafts pay with few slots and many threads alone, and bfloat16 never."""
    computes = setting.slots**0.5 / 4 * (1.7 if setting.threads == 2 else 1.0)
    drafted = {"none": 1.0, "ngram": 0.9, "suffix": 1.05, "model": pays * (16 / setting.slots) ** 0.3}[setting.drafter]
    return computes * drafted * (0.8 if setting.dtype == "bfloat16" else 1.0)


@pytest.mark.parametrize("pays", [0.5, 1.0, 1.3, 3.0])
@pytest.mark.parametrize("costs", [0.0, 0.01])
def test_the_choice_is_within_5_percent_of_the_best_of_a_grid_that_is_not_measured(pays, costs):
    rates = {setting: _rate(setting, pays) for setting in GRID}
    planted = Planted(rates, costs)
    search(PLAIN, AXES, planted)
    assert len(planted.measured) < 0.6 * len(GRID)
    assert rates[choose(PLAIN, planted.measured, planted, 0.02)] > 0.95 * max(rates.values())


def test_most_repeats_go_to_the_best():
    planted = Planted({setting: _rate(setting, 1.3) for setting in GRID})
    search(PLAIN, AXES, planted)
    first, *others = fastest(planted.measured, planted)
    assert planted.measured[first] > 2 * planted.measured[others[-1]]


def test_a_slow_drafter_is_not_chosen_and_a_fast_one_is():
    planted = _of_all({PLAIN: 1.0, NGRAM: 0.4, SUFFIX: 1.3})
    assert choose(PLAIN, planted.rates, planted, 0.05) == SUFFIX
    assert choose(PLAIN, [PLAIN, NGRAM], planted, 0.05) == PLAIN


def test_none_is_taken_where_all_gains_are_within_the_noise():
    planted = _of_all({PLAIN: 1.0, NGRAM: 1.03, SUFFIX: 1.04})
    assert choose(PLAIN, planted.rates, planted, 0.05) == PLAIN
    assert choose(PLAIN, planted.rates, planted, 0.001) == SUFFIX


def test_of_settings_that_are_as_fast_the_one_with_fewer_changes_is_taken():
    wide, wider = replace(PLAIN, slots=32), replace(PLAIN, slots=32, threads=2)
    planted = _of_all({PLAIN: 1.0, wide: 1.5, wider: 1.51})
    assert choose(PLAIN, planted.rates, planted, 0.02) == wide


def test_the_runs_own_setting_is_taken_before_another_one_that_is_as_fast():
    others = [replace(PLAIN, drafter=name, slots=slots) for name in ("ngram", "suffix") for slots in (16, 32)]
    planted = _of_all({PLAIN: 1.0, **dict.fromkeys(others, 1.5)})
    assert [choose(own, planted.rates, planted, 0.02) for own in others] == others


@pytest.mark.parametrize("costs", [0.03, 0.05, 0.08])
def test_a_search_with_little_time_still_tries_drafts(costs):
    planted = Planted({setting: _rate(setting, 3.0) for setting in GRID}, costs)
    search(PLAIN, AXES, planted)
    assert {setting.drafter for setting in planted.measured} > {"none"}


def test_a_search_without_time_measures_the_plain_setting_alone():
    planted = Planted(dict.fromkeys(GRID, 1.0), costs=0.8)
    planted.run("first", [PLAIN], 1.0)
    search(PLAIN, AXES, planted)
    assert choose(PLAIN, planted.measured, planted, 0.0) == PLAIN
