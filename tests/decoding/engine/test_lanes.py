"""Lanes: rows in groups of which one goes on while another waits for a draft or a verdict; the text never shows it."""

import pytest

from decoding.engine.rounds.lane import divide_slots
from tests.decoding.tiny import (
    assert_each_once,
    engine_over,
    numbered,
    outputs,
    random_prompts,
    run,
)
from tests.worlds.lanes import lanes_over

PROMPTS = [*random_prompts([1, 30, 2, 17, 5], seed=23), *[random_prompts([20], seed=24)[0]] * 3]


def _sequences(temperature=0.8, max_tokens=14, **params):
    return numbered(PROMPTS, temperature=temperature, max_tokens=max_tokens, **params)


def test_one_lane_is_drafted_for_while_the_other_is_verified(models):
    engine, diary = lanes_over(models, is_remote=True)
    for lane, name in zip(engine.lanes, "ab", strict=True):
        score = lane.target.score
        lane.target.score = lambda request, score=score, name=name: diary.append(f"score {name}") or score(request)
    list(engine.stream(_sequences(max_tokens=30)[:4]))
    middle = diary[4:-8]
    assert len(middle) > 20
    for here, entry in enumerate(middle[:-1]):
        if entry.startswith("score"):  # and committed: the next draft is asked for before anything else is done
            assert middle[here + 1] == f"ask {entry[-1]}", middle
        else:
            assert middle[here + 1] != f"score {entry[-1]}", f"a lane waited for its own draft: {middle}"


def test_all_stages_have_work_while_verdicts_are_waited_for(models):
    engine, diary = lanes_over(models, "none", 3, is_staged=True, num_slots=6)
    list(engine.stream(_sequences(max_tokens=30)[:6]))
    in_flight, most = set(), 0
    for entry in diary:
        verb, name = entry.split()
        (in_flight.add if verb == "score" else in_flight.discard)(name)
        most = max(most, len(in_flight))
    assert most == 3


def test_few_rows_are_spread_over_the_lanes(models):
    engine, _ = lanes_over(models, num_lanes=2, num_slots=8)
    engine.submit(_sequences()[:4])
    engine.step()
    assert [len(lane.running) for lane in engine.lanes] == [2, 2]


def test_an_engine_that_is_cleared_in_the_middle_of_a_round_begins_anew(models):
    engine, diary = lanes_over(models, is_remote=True, is_staged=True)
    engine.submit(_sequences())
    while not {"score a", "ask b"} <= set(diary):
        engine.step()
    engine.clear()
    assert not engine.has_work
    expected = run(engine_over(models.target, drafter="none"), _sequences())
    assert outputs(run(engine, _sequences())) == outputs(expected)


def test_rows_that_are_dropped_while_they_are_judged_end_and_the_others_do_not_change(models):
    engine, diary = lanes_over(models, is_remote=True, is_staged=True)
    expected = outputs(run(engine_over(models.target, drafter="none"), _sequences()))
    sequences = _sequences()
    engine.submit(sequences)
    finished = []
    while diary.count("score a") < 2:
        finished += engine.step()
    engine.drop([sequence for sequence in sequences[::2] if not sequence.is_finished])
    while engine.has_work:
        finished += engine.step()
    assert_each_once(finished, sequences)
    assert outputs(sequences)[1::2] == expected[1::2]


@pytest.mark.parametrize(
    ("num_slots", "num_lanes", "expected"), [(5, 2, [3, 2]), (1, 2, [1]), (4, 1, [4]), (3, 3, [1, 1, 1])]
)
def test_slots_are_divided_among_lanes_and_no_lane_is_without(num_slots, num_lanes, expected):
    assert list(divide_slots(num_slots, num_lanes)) == expected
