"""The counts of an answer, told from its choices."""

from collections import Counter
from types import SimpleNamespace

from endpoint.answers.choices import speculative_decoding, usage


def choice(num_tokens=0, rounds=()):
    ending = SimpleNamespace(num_cached_tokens=2)
    return SimpleNamespace(reached=SimpleNamespace(num_tokens=num_tokens), ending=ending, rounds=Counter(dict(rounds)))


def test_a_prompt_counts_once_however_many_samples_it_has():
    generation = SimpleNamespace(prompts=[(1, 2, 3), (4, 5)], params=SimpleNamespace(n=2))
    counts = usage(generation, [choice(7), choice(8), choice(9), choice(10)])
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (5, 34, 39)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 4}


def test_rounds_whose_draft_was_rejected_whole_are_steps_of_the_histogram():
    counts = speculative_decoding([choice(rounds={(3, 0): 4, (3, 2): 1, (0, 0): 9})], 3)
    assert counts["acceptance_histogram"] == [4, 0, 1, 0]
    assert (counts["num_spec_steps"], counts["draft_acceptance_rate"]) == (5, 2 / 15)
