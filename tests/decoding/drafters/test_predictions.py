"""A row with a prediction of its text drafts that, goes on behind a change, and writes what it would have written."""

import random
from dataclasses import replace

import pytest

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.lookups.known_texts import Calibration
from decoding.drafters.lookups.ngram import NGramDrafter
from decoding.drafters.lookups.prediction import Prediction
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule
from tests.decoding.tiny import (
    check_counts,
    drafted,
    drafter_over,
    engine_over,
    numbered,
    outputs,
    random_prompts,
    rows_over,
    run,
)

OLD = [10, 11, 12, 13, 14, 15, 16, 17, 12, 19]
FLAT = CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05), (64, 0.05)))
LINE = CostTable(target=((1, 1.0), (101, 101.0)), draft=((1, 0.05), (64, 0.05)))


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "as it was": ([10, 11, 12], [13, 14, 15]),
        "one token in place of another": ([10, 11, 99], [13, 14, 15]),
        "one token more": ([10, 11, 99, 12], [13, 14, 15]),
        "one token less": ([10, 12], [13, 14, 15]),
        "a stretch that is new": ([10, 11, 90, 91, 92, 93, 94, 15], [16, 17, 12]),
        "a stretch that is gone": ([10, 11, 16], [17, 12, 19]),
        "the place that more tokens lead to": ([10, 99, 16, 17, 12], [19]),
        "from the beginning": ([], [10, 11, 12]),
        "nothing behind its end": ([*OLD, 5], []),
    }.values(),
)
def test_a_prediction_goes_on_where_old_and_new_text_meet_again(text, expected):
    at_once, grown = Prediction(OLD), Prediction(OLD)
    at_once.read(text)
    for length in range(len(text) + 1):
        grown.read(text[:length])
    assert at_once.expected(3) == grown.expected(3) == expected
    assert at_once.num_right == grown.num_right


def test_a_prediction_counts_the_tokens_that_it_foresaw_and_those_since_the_last_difference():
    prediction = Prediction(OLD)
    prediction.read(OLD[:4])
    assert (prediction.num_right, prediction.num_agreeing) == (4, None)
    prediction.read([*OLD[:4], 99, *OLD[5:8]])
    assert (prediction.num_right, prediction.num_agreeing) == (7, 3)


@pytest.mark.parametrize("make", [NGramDrafter, SuffixDrafter])
def test_each_row_drafts_its_own_prediction_and_no_row_that_of_another(make):
    drafter = make()
    rows = [Sequence.create([1, 2, 3, 4], SamplingParams(max_tokens=50), row=0, sample=sample) for sample in range(3)]
    rows[0].prediction, rows[1].prediction = (5, 6, 7), (8, 9)
    drafter.admit([0, 1, 2], rows)
    round_ = rows_over(rows, [4, 4, 4])
    drafter.lookup_survival(round_)
    assert drafted(drafter.propose(round_)) == [[5, 6, 7], [8, 9], []]
    drafter.swap(0, 2)
    round_ = rows_over([rows[2], rows[1], rows[0]], [4, 4, 4])
    assert drafted(drafter.propose(round_)) == [[], [8, 9], [5, 6, 7]]
    drafter.admit([1], [rows[2]])  # a newcomer without a prediction takes the slot
    assert drafted(drafter.propose(rows_over([rows[2], rows[2], rows[0]], [4, 4, 4])))[1] == []


def test_a_prediction_is_no_text_that_other_rows_look_up():
    drafter = SuffixDrafter()
    first, second = (Sequence.create([1, 2, 3, 4], SamplingParams(max_tokens=50), row=row) for row in range(2))
    first.prediction = (5, 6, 7, 8)
    second.output_token_ids.append(5)
    drafter.admit([0, 1], [first, second])
    assert drafted(drafter.propose(rows_over([first, second], [4, 4])))[1] == []


def test_predictions_that_fail_are_soon_offered_with_little_hope():
    drafter, chance = SuffixDrafter(), []
    for row in range(6):
        sequence = Sequence.create([1, 2, 3, 4], SamplingParams(max_tokens=90), row=row)
        sequence.prediction = tuple(range(100, 140))
        drafter.admit([0], [sequence])
        for token in range(8):
            rows = rows_over([sequence], [8])
            chance.append(drafter.lookup_survival(rows)[0][:1])
            drafter.propose(rows)
            sequence.output_token_ids.append(3 + row + token)
            drafter.observe(rows, [8], [0])
    assert chance[0] >= [0.9]
    assert chance[-1] < [0.3]


@pytest.mark.parametrize(("costs", "least", "most"), [(FLAT, 64, 64), (LINE, 0, 8)])
def test_a_row_drafts_a_long_prediction_where_that_pays_and_others_no_more_than_their_ceiling(costs, least, most):
    schedule, rows = AdaptiveSchedule(costs, 8), numbered([[1], [1]], max_tokens=500)
    rows[0].prediction = tuple(range(200))
    limits = schedule.lengths(rows)
    assert limits == (64, 8)
    plan = schedule.plan(rows, [[0.99] * 64, [0.5]], has_model=False)
    assert least <= plan.lengths[0] <= most
    assert plan.lengths[1] <= 8


def test_a_row_never_drafts_more_of_its_prediction_than_it_may_and_can_keep():
    schedule, rows = AdaptiveSchedule(FLAT, 8), numbered([[1]] * 3, max_tokens=20)
    for row, limit in zip(rows, (None, 3, 0), strict=True):
        row.prediction, row.num_speculative_tokens = tuple(range(60)), limit
    assert schedule.lengths(rows) == (19, 3, 0)
    assert FixedSchedule(8).lengths(rows) == (8, 3, 0)
    schedule.heed_states()
    assert schedule.lengths(rows) == (8, 3, 0)


def test_many_rows_share_the_tokens_of_a_round():
    schedule, rows = AdaptiveSchedule(FLAT, 4), numbered([[1]] * 64, max_tokens=500)
    for row in rows:
        row.prediction = tuple(range(200))
    assert schedule.lengths(rows) == (7,) * 64


def _again(rows: list[Sequence], texts: list[list[int]]) -> list[Sequence]:
    for row, text in zip(rows, texts, strict=True):
        row.prediction = tuple(text)
    return rows


def _adaptive(target, draft, kind, costs=FLAT):
    """An engine whose draft lengths adapt to these costs."""
    engine = engine_over(target, draft, kind, num_speculative_tokens=4)
    part = drafter_over(kind, draft, target, 3, 80)
    return Engine([(target, part)], replace(engine.options, drafter=kind), 80, costs)


@pytest.mark.parametrize("kind", ["ngram", "suffix", "hybrid"])
def test_a_text_that_is_written_again_takes_few_rounds_and_is_the_same(models, kind):
    prompts, params = random_prompts([7, 3, 9, 4], seed=4), {"temperature": 0.9, "max_tokens": 40}
    texts = outputs(run(engine_over(models.target), numbered(prompts, **params)))
    rows = _again(numbered(prompts, **params), texts)
    assert outputs(run(_adaptive(models.target, models.good_draft, kind), rows)) == texts
    assert all(row.num_rounds <= 2 for row in rows)
    for row in rows:
        check_counts(row)


def test_a_changed_text_is_followed_from_where_old_and_new_meet_again(models):
    """Old texts are those of the same rows with one token replaced in each stretch of ten."""
    prompts, params = random_prompts([7, 3, 9, 4], seed=4), {"temperature": 0.9, "max_tokens": 40}
    texts = outputs(run(engine_over(models.target), numbered(prompts, **params)))
    changed = [[token + 50 if place % 10 == 5 else token for place, token in enumerate(text)] for text in texts]
    rows = _again(numbered(prompts, **params), [[token % 48 for token in text] for text in changed])
    assert outputs(run(_adaptive(models.target, None, "suffix"), rows)) == texts
    assert all(row.num_rounds <= 12 for row in rows)


@pytest.mark.parametrize("kind", ["none", "model"])
def test_a_drafter_without_a_lookup_writes_the_text_without_its_prediction(models, kind):
    prompts, params = random_prompts([7, 3], seed=4), {"temperature": 0.9, "max_tokens": 20}
    texts = outputs(run(engine_over(models.target), numbered(prompts, **params)))
    rows = _again(numbered(prompts, **params), texts)
    assert outputs(run(engine_over(models.target, models.good_draft, kind), rows)) == texts


@pytest.mark.parametrize("verification", ["rejection", "unadjusted"])
def test_a_prediction_is_refused_where_the_text_depends_on_its_draft(models, verification):
    rows = numbered(random_prompts([7, 3], seed=4), max_tokens=10)
    rows[0].prediction = (1, 2, 3)
    run(engine_over(models.target, drafter="suffix", verification=verification), rows)
    assert rows[0].error is not None
    assert "prediction" in rows[0].error
    assert "'coupled'" in rows[0].error
    assert rows[1].error is None


def test_a_predicted_token_that_the_target_does_not_have_is_refused(models):
    (row,) = _again(numbered([[1, 2]], max_tokens=5), [[3, 4800]])
    run(engine_over(models.target, drafter="suffix"), [row])
    assert "4800" in str(row.error)


def test_predictions_have_a_calibration_of_their_own():
    calibration = Calibration()
    for _ in range(2000):
        calibration.observe([("predicted", None)] * 30, 30)
    assert 0.997 < calibration.rate(("predicted", None), 0.99, most=0.998) <= 0.998
    assert calibration.rate((True, 12, 7), 0.5) == 0.5


def test_a_prediction_is_found_in_the_time_of_a_few_tokens_however_long_it_is():
    """A token that stands everywhere is compared at few of its places."""
    chance = random.Random(0)
    prediction = Prediction([chance.choice([1, 2]) for _ in range(5000)])
    compared = 0

    class Counted(list):
        def __getitem__(self, key):
            nonlocal compared
            compared += isinstance(key, int)
            return super().__getitem__(key)

    prediction._tokens = Counted(prediction._tokens)
    prediction.read([3, 1])
    assert prediction.expected(1)
    assert compared < 600
