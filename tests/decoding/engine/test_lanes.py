"""Lanes: rows in groups of which one goes on while another waits for a draft or a verdict; the text never shows it."""

from types import SimpleNamespace

import pytest

from decoding import Engine, EngineOptions, Sequence
from decoding.drafters import DRAFTERS
from decoding.engine.rounds.lane import divide_slots
from decoding.sampling.judging import ScoreRequest
from tests.decoding.tiny import (
    assert_each_once,
    check_counts,
    drafter_over,
    engine_over,
    numbered,
    outputs,
    random_prompts,
    run,
)
from tests.pairs_of_values import every_pair

PROMPTS = [*random_prompts([1, 30, 2, 17, 5], seed=23), *[random_prompts([20], seed=24)[0]] * 3]


class Elsewhere:
    """A target whose verdicts come from another process: not before the engine waits for them."""

    def __init__(self, target, name, diary):
        self._target, self._name, self._diary = target, name, diary

    def __getattr__(self, name):
        return getattr(self._target, name)

    def score(self, request: ScoreRequest):
        """Judge the request as it is sent: what happens to its rows until the verdicts come must not enter them."""
        self._diary.append(f"score {self._name}")
        verdicts = self._target.score(request).result()
        return SimpleNamespace(is_ready=False, result=lambda: self._diary.append(f"verdict {self._name}") or verdicts)


def _ask_elsewhere(drafter, name, diary):
    """Make the drafter one that another process runs: it drafts when it is asked, and hands over later."""
    asked = {}
    propose = drafter.propose
    drafter.is_remote = True

    def ask(rows):
        diary.append(f"ask {name}")
        asked[rows.sequences] = (propose(rows), [len(sequence) for sequence in rows.sequences])

    def collect(rows):
        draft, lengths = asked.pop(rows.sequences)
        assert lengths == [len(sequence) for sequence in rows.sequences], "a row went on while it was drafted for"
        return draft

    drafter.ask, drafter.propose = ask, collect
    return drafter


def lanes_over(models, drafter="model", num_lanes=2, *, is_remote=False, is_staged=False, num_slots=5):
    options = EngineOptions(num_slots=num_slots, max_model_len=80, drafter=drafter, num_speculative_tokens=4)
    parts, diary = [], []
    for lane in range(num_lanes):
        target = models.target.share()
        part = drafter_over(drafter, models.good_draft.share(), models.target, num_slots, 80)
        name = "abc"[lane]
        target = Elsewhere(target, name, diary) if is_staged else target
        parts.append((target, _ask_elsewhere(part, name, diary) if is_remote else part))
    return Engine(parts, options, 80), diary


def _sequences(temperature=0.8, max_tokens=14, **params):
    return numbered(PROMPTS, temperature=temperature, max_tokens=max_tokens, **params)


@pytest.fixture(scope="module")
def plain(models) -> list[tuple[dict, list[Sequence]]]:
    """Parameters, and the rows one after the other in one engine."""
    return [
        (params, run(engine_over(models.target, drafter="none", num_slots=1), _sequences(**params)))
        for params in ({"temperature": 0.0}, {"repetition_penalty": 1.3, "logprobs": 2})
    ]


@pytest.mark.parametrize(
    ("drafter", "num_lanes", "is_remote", "is_staged"),
    every_pair(list(DRAFTERS), [1, 2, 3], [False, True], [False, True]),
)
def test_rows_in_lanes_get_the_tokens_they_get_in_one_engine(models, plain, drafter, num_lanes, is_remote, is_staged):
    for params, expected in plain:
        engine, _ = lanes_over(models, drafter, num_lanes, is_remote=is_remote, is_staged=is_staged)
        found = run(engine, _sequences(**params))
        assert outputs(found) == outputs(expected)
        for sequence, other in zip(found, expected, strict=True):
            check_counts(sequence)
            assert len(sequence.logprobs) == len(other.logprobs)
            for mine, theirs in zip(sequence.logprobs, other.logprobs, strict=True):
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


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
