"""A sequence keeps the tokens up to its end, and counts exactly those."""

import pytest

from decoding import SamplingParams, Sequence
from decoding.noise import noise_key
from decoding.sequence import Round, TokenLogprobs

EOS = frozenset({9})


def _sequence(**params: object) -> Sequence:
    return Sequence.create([1, 2], SamplingParams(**params))


def _commit(sequence: Sequence, *token_ids: int, drafted: int = 4) -> Sequence:
    logprobs = [TokenLogprobs(-float(t), ()) for t in token_ids]
    sequence.commit(token_ids, num_draft_tokens=drafted, eos_token_ids=EOS, logprobs=logprobs)
    return sequence


def _counts(sequence: Sequence) -> tuple[int, int, int, list[int]]:
    return sequence.num_rounds, sequence.num_draft_tokens, sequence.num_accepted_tokens, sequence.accepted_per_position


def test_a_round_is_its_accepted_tokens_and_one_more():
    sequence = _commit(_sequence(), 3, 4, 5)
    assert sequence.token_ids == [1, 2, 3, 4, 5]
    assert len(sequence) == 5
    assert _counts(sequence) == (1, 4, 2, [1, 1])
    _commit(sequence, 6, drafted=0)
    _commit(sequence, 7, 8)
    assert _counts(sequence) == (3, 8, 3, [2, 1])
    assert not sequence.is_finished


@pytest.mark.parametrize(("offset", "accepted"), [(0, 1), (1, 2), (2, 3), (3, 3)])
def test_an_accepted_end_token_counts_as_accepted_and_what_follows_does_not(offset, accepted):
    tokens = [3, 4, 5, 6]
    tokens[offset] = 9
    sequence = _commit(_sequence(), *tokens)
    assert sequence.output_token_ids == tokens[: offset + 1]
    assert len(sequence.logprobs) == offset + 1
    assert sequence.finish_reason == "stop"
    assert _counts(sequence) == (1, 4, accepted, [1] * accepted)


def test_an_end_token_that_is_also_a_stop_token_is_the_reason():
    assert _commit(_sequence(stop_token_ids=[9]), 9).stop_reason == 9
    assert _commit(_sequence(), 9).stop_reason is None


@pytest.mark.parametrize("end", [{"stop_token_ids": (9,)}, {}])
def test_an_end_counts_only_behind_min_tokens(end):
    sequence = Sequence.create([1], SamplingParams(min_tokens=2, max_tokens=8, **end))
    sequence.commit([4, 9], num_draft_tokens=1, eos_token_ids=frozenset({9}))
    assert not sequence.is_finished
    sequence.commit([9], num_draft_tokens=0, eos_token_ids=frozenset({9}))
    assert sequence.finish_reason == "stop"


def test_a_stop_condition_is_asked_only_about_new_tokens_behind_min_tokens():
    asked = []
    params = SamplingParams(min_tokens=3, stop=["x"])
    sequence = Sequence.create([1], params, stop_condition=lambda tokens, start: asked.append((list(tokens), start)))
    for committed in ((3, 4), (5, 6), (7,)):
        _commit(sequence, *committed)
    assert asked == [([3, 4], 3), ([3, 4, 5, 6], 3), ([3, 4, 5, 6, 7], 4)]


def test_noise_comes_from_run_seed_row_and_sample_or_from_an_own_seed():
    params, seeded = SamplingParams(), SamplingParams(seed=5)
    assert Sequence.create([1], params, run_seed=1, row=2, sample=3).noise_key == noise_key(1, 2, 3)
    assert Sequence.create([1], seeded, run_seed=1, row=2, sample=3).noise_key == noise_key(5, 0, 3)


def test_stop_ids_are_the_models_and_the_requests():
    assert _sequence(stop_token_ids=[4]).stop_ids(EOS) == {4, 9}
    assert _sequence(stop_token_ids=[4], ignore_eos=True).stop_ids(EOS) == {4}


def test_a_round_that_ends_the_text_records_what_was_drafted_behind_its_end():
    sequence = _sequence()
    sequence.rounds = []
    for tokens, draft in (((3, 4, 5), (3, 4, 6, 7)), ((3, 9, 4, 5), (3, 9, 4, 1))):
        sequence.commit(tokens, num_draft_tokens=4, eos_token_ids=EOS, draft_token_ids=draft)
    assert sequence.output_token_ids == [3, 4, 5, 3, 9]
    assert sequence.rounds == [Round(2, (6, 7)), Round(2, (4, 1))]


def test_a_record_without_drafts_is_a_fault():
    sequence = _sequence()
    sequence.rounds = []
    with pytest.raises(AssertionError, match="with its draft"):
        _commit(sequence, 3, 4)


def test_a_draft_is_as_long_as_the_row_could_keep_and_may_have():
    sequence = Sequence.create([1], SamplingParams(max_tokens=5), num_speculative_tokens=2)
    assert sequence.max_draft_tokens == 2
    sequence.output_token_ids += [3, 3, 3]
    assert sequence.max_draft_tokens == 1
    sequence.num_speculative_tokens = 0
    assert sequence.max_draft_tokens == 0
    sequence.num_speculative_tokens = None
    assert sequence.max_draft_tokens == 1


@pytest.mark.parametrize(
    ("params", "tokens", "rejected", "kept"),
    [
        ({}, [3, 4], [5, 6], (5, 6)),
        ({}, [3, 9], [5, 6], (5, 6)),  # the target ends where the draft went on
        ({}, [9, 4], [5, 6], ()),  # an accepted token ended the text: the one in place of the draft's was not kept
        ({"max_tokens": 1}, [3, 4], [5, 6], ()),
        ({}, [3, 4], [4, 6], ()),  # a close call was decided anew, as the draft had it
        ({}, [3, 4, 5], [], ()),
    ],
)
def test_what_was_rejected_is_kept_where_another_token_stands_in_its_place(params, tokens, rejected, kept):
    sequence = _sequence(**params)
    draft = [*tokens[:-1], *rejected]
    sequence.commit(tokens, num_draft_tokens=len(draft), eos_token_ids=EOS, draft_token_ids=draft)
    assert sequence.rejected_token_ids == kept


def test_what_was_rejected_is_that_of_the_newest_round_alone():
    sequence = _sequence()
    sequence.commit([3, 4], num_draft_tokens=3, eos_token_ids=EOS, draft_token_ids=[3, 5, 6])
    sequence.commit([3], num_draft_tokens=0, eos_token_ids=EOS)
    assert sequence.rejected_token_ids == ()
