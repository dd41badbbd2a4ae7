"""How long two prompts are the same."""

import random

import pytest

from decoding import SamplingParams, Sequence
from decoding.common_prefix import common_prefix
from decoding.engine.rounds.prefix import Resident


def test_a_common_prefix_is_what_counting_one_by_one_finds():
    chance = random.Random(0)
    for _ in range(300):
        first, second = (tuple(chance.randrange(2) for _ in range(chance.randrange(80))) for _ in range(2))
        head = tuple(chance.randrange(2) for _ in range(chance.randrange(80)))
        first, second = head + first, head + second
        differ = [index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
        assert common_prefix(first, second) == min([*differ, len(first), len(second)])


def resident(prompt: list[int], output: list[int] | None = None, **fields: int) -> Resident:
    sequence = Sequence.create(prompt, SamplingParams())
    found = Resident(sequence, 0, **{"num_filled": len(prompt) - 1, **fields})
    sequence.output_token_ids += output or []
    return found


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3, 9, 9], 3),
        ([1, 2, 3, 4, 5, 6, 7], 5),  # the newest token of the other, 6, has no keys and values yet
        ([1, 2, 3, 4], 4),
        ([1, 2], 2),
        ([], 0),
        ([2, 1], 0),
    ],
)
def test_settled_tokens_of_prompt_and_output_can_be_shared_and_the_newest_cannot(prompt, expected):
    assert resident([1, 2, 3, 4], [5, 6]).num_in_common(tuple(prompt)) == expected


def test_a_prompt_that_is_being_read_shares_what_has_been_read():
    half = resident([1, 2, 3, 4, 5], num_filled=2)
    assert half.num_in_common((1, 2, 3, 4, 9)) == 4
    assert half.num_cached(4) == 2
    assert half.num_cached(1) == 1


def test_a_sequence_that_failed_shares_nothing():
    failed = resident([1, 2, 3, 4], [5, 6])
    failed.sequence.fail("not finite")
    assert failed.num_in_common((1, 2, 3, 4, 5)) == 0


def test_a_sequence_that_comes_with_output_is_read_to_its_newest_token():
    sequence = Sequence.create([1, 2, 3], SamplingParams())
    sequence.output_token_ids += [4, 5]
    again = Resident(sequence, 0)
    assert again.tokens_to_read == (1, 2, 3, 4)
    sequence.output_token_ids += [6]
    assert again.tokens_to_read == (1, 2, 3, 4), "what it has written since is not read, but computed by the rounds"
