"""A draft's score on texts: the rounds of a live run, without generating."""

from dataclasses import replace

import pytest

from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.counts import Counts
from tests.decoding.heads.tiny_heads import perfect_blocks, save_perfect_pair
from tests.training.conftest import PARAMS
from tests.training.pair import DRAFT, HEAD, TARGET, Prompt, examples_of, written
from training.evaluation.kind_score import DraftScore
from training.evaluation.pair import Pair, measure_rounds
from training.evaluation.score import score

MIXED = [
    SamplingParams(temperature=0.0, max_tokens=40),
    SamplingParams(temperature=0.8, max_tokens=40),
    SamplingParams(temperature=1.0, top_p=0.9, top_k=30, max_tokens=40),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=10, max_tokens=40),
    SamplingParams(temperature=1.0, min_p=0.05, stop_token_ids=(203,), logit_bias={17: -5.0}, max_tokens=40),
    SamplingParams(temperature=0.9, ignore_eos=True, max_tokens=25),
]


def live(rows: list[Sequence]) -> Counts:
    """Return what the engine counted."""
    names = ("num_rounds", "num_draft_tokens", "num_accepted_tokens")
    of_rows = (
        Counts(**{name: getattr(row, name) for name in names}, accepted_per_position=tuple(row.accepted_per_position))
        for row in rows
    )
    return sum(of_rows, Counts())


def loaded(draft: str | Pair) -> Pair:
    return draft if isinstance(draft, Pair) else Pair(draft, TARGET, "cpu", "float32")


def scored(draft: str | Pair, rows: list[Sequence], num_draft_tokens: int = 4) -> DraftScore:
    return score(loaded(draft), examples_of(rows), num_draft_tokens)


@pytest.mark.parametrize("draft", [DRAFT, HEAD], ids=["draft", "head"])
@pytest.mark.parametrize("params", [[PARAMS], MIXED], ids=["demo", "mixed"])
def test_the_rounds_are_those_of_the_engine(some_prompts, draft, params):
    rows = written(some_prompts, params, draft)
    found, counted = scored(draft, rows), live(rows)
    rounds = found.all.rounds
    assert found.all.reproduced == 1
    assert rounds.num_accepted_tokens > 500
    assert replace(rounds, num_draft_tokens=0) == replace(counted, num_draft_tokens=0)
    # A live draft sees end tokens behind the first one that is rejected, and drafts no more there.
    assert 0 <= rounds.num_draft_tokens - counted.num_draft_tokens < 0.02 * counted.num_draft_tokens


@pytest.mark.parametrize("draft", [DRAFT, HEAD], ids=["draft", "head"])
def test_a_near_tie_of_the_target_ends_a_round_as_in_the_engine(some_prompts, draft):
    """Near ties are rare; with a wide margin there are many."""
    rows = written(some_prompts[:12], [PARAMS], draft, close_call=0.5)
    pair = Pair(draft, TARGET, "cpu", "float32")
    without = scored(pair, rows).all.rounds
    pair.target.close_call = 0.5
    rounds, counted = scored(pair, rows).all.rounds, live(rows)
    assert rounds.num_rounds > 1.1 * without.num_rounds
    assert replace(rounds, num_draft_tokens=0) == replace(counted, num_draft_tokens=0)


def test_a_prompt_of_one_token_is_replayed_too():
    prompts = [Prompt("one", "", False, (token,)) for token in (5, 40, 99)]
    for draft in (DRAFT, HEAD):
        rows = written(prompts, [PARAMS], draft)
        rounds, counted = scored(draft, rows).all.rounds, live(rows)
        assert replace(rounds, num_draft_tokens=0) == replace(counted, num_draft_tokens=0)


def test_the_score_of_a_text_does_not_depend_on_who_drafted_for_it(some_prompts, some_texts):
    assert scored(DRAFT, some_texts) == scored(DRAFT, written(some_prompts, [PARAMS], HEAD))


def test_noise_of_other_positions_is_noticed(some_texts):
    """The prompt is one token longer, so each token stands one position later than where it was picked."""
    later = [replace(each, prompt_token_ids=(2, *each.prompt_token_ids)) for each in examples_of(some_texts)]
    found = score(loaded(DRAFT), later, 4)
    assert found.all.reproduced is not None
    assert found.all.reproduced < 0.95


def test_kinds_add_up_to_the_whole(some_texts):
    found = scored(DRAFT, some_texts)
    assert set(found.by_kind) == {row.tag for row in some_texts}
    assert found.all.num_tokens == sum(len(row.output_token_ids) for row in some_texts)
    assert 0.7 < found.all.agreement < 1
    assert 0.8 < found.all.overlap < 1
    # Coupled acceptance of a token is between (1 - TV) / (1 + TV) and 1 - TV (Daliri, Musco, Suresh 2408.07978).
    assert found.all.overlap / (2 - found.all.overlap) - 0.02 < found.all.match_rate < found.all.overlap + 0.02


def test_the_target_as_its_own_draft_is_accepted_whole(some_texts):
    found = scored(TARGET, some_texts[:10])
    assert found.all.agreement == found.all.match_rate == 1
    assert found.all.overlap == pytest.approx(1, abs=1e-6)
    assert found.all.rounds.num_accepted_tokens == found.all.rounds.num_draft_tokens


def test_without_keys_acceptance_is_that_of_noise_that_fits_the_text(some_texts):
    with_keys = scored(DRAFT, some_texts).all
    found = score(loaded(DRAFT), (replace(each, noise_key=None) for each in examples_of(some_texts)), 4)
    assert found.all.reproduced is None
    assert found.all.match_rate == pytest.approx(with_keys.match_rate, abs=0.02)
    assert found.all.tokens_a_round == pytest.approx(with_keys.tokens_a_round, abs=0.25)
    assert (found.all.agreement, found.all.overlap) == (with_keys.agreement, with_keys.overlap)


def test_a_faster_round_or_a_better_draft_is_a_larger_speed_up():
    pair = Pair(DRAFT, TARGET, "cpu", "float32")
    seconds = measure_rounds(pair, 4, 2)
    assert 0 < seconds.plain < seconds.drafted
    assert seconds.speed_up(4.0) == pytest.approx(4 * seconds.plain / seconds.drafted)


def test_drafts_whose_rounds_cannot_be_replayed_are_refused(tmp_path):
    target, head = save_perfect_pair(tmp_path, perfect_blocks)
    with pytest.raises(ValueError, match=r"of kind 'dspark', and only draft models and EAGLE-3 heads can be evaluated"):
        Pair(head, target, "cpu", "float32")
