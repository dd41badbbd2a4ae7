"""A stage measures as many settings as there is time and memory for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from decoding.engine.engine import Engine
from decoding.engine.options import EngineOptions
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence as Row
from decoding.turns import one_repeat
from jobs.work.tuning.engine_turns import engine_way
from jobs.work.tuning.setting import Setting
from jobs.work.tuning.trials import Trials
from tests.jobs.tuning.test_search import PLAIN

SETTINGS = [replace(PLAIN, slots=number) for number in range(1, 7)]


class Planted(Trials):
    """Trials of settings each of which takes a hundredth of the time, as the plain one does."""

    def __init__(self, run: Callable[[Sequence[Setting]], list[Setting]]) -> None:
        self.plain, self.ruled_out, self.groups = PLAIN, [], list[list[Setting]]()
        self._seconds, self._started, self._at_once = 1000.0, time.monotonic(), 5
        self._took, self.passes = dict.fromkeys([PLAIN, *SETTINGS], 10.0), {PLAIN: []}
        self._say, self._measure = lambda line: None, run

    def _run_together(self, others: Sequence[Setting]) -> list[Setting]:
        self.groups.append(list(others))
        self._started -= 10.0 * (2 + len(others))
        return self._measure(others)


def test_where_there_is_no_time_for_all_the_first_ones_are_measured():
    trials = Planted(lambda others: [])
    assert not trials.run("drafter", SETTINGS, 0.045)
    assert trials.groups == [SETTINGS[:2]]
    assert not trials.run("drafter", SETTINGS, 0.045)
    assert len(trials.groups) == 1
    assert trials.run("drafter", [*SETTINGS, PLAIN], 0.2)
    assert trials.groups[1:] == [SETTINGS[:5], SETTINGS[5:]]


def test_settings_for_which_memory_is_too_small_together_are_measured_one_by_one():
    trials = Planted(lambda others: list(others[-1:]) if len(others) > 1 else [])
    assert trials.run("slots", SETTINGS[:3], 1.0)
    assert trials.groups == [SETTINGS[:3], SETTINGS[2:3]]
    assert trials.ruled_out == []


def test_a_setting_for_which_memory_is_too_small_alone_is_not_tried_again():
    trials = Planted(lambda others: [each for each in others if each.slots == 3])
    assert trials.run("slots", SETTINGS[:3], 1.0)
    assert trials.ruled_out == [SETTINGS[2]]
    assert trials.run("around", SETTINGS[:3], 1.0)
    assert all(SETTINGS[2] not in group for group in trials.groups[2:])


def test_an_engine_gives_up_at_its_time_and_has_written_a_part(text_pair):
    engine = Engine.load(*text_pair, options=EngineOptions(num_slots=1), device="cpu", dtype="float32")
    rows = [Row.create([5, 6, 7], SamplingParams(max_tokens=200), run_seed=0, row=row) for row in range(100)]
    found = one_repeat({"late": engine_way(lambda: engine, lambda _: rows, ends=time.monotonic())}, 0)["late"]
    assert 0 < found.done < 100 * 200 / 2
