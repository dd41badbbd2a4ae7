"""The counts of an answer, told from its choices."""

from collections import Counter
from types import SimpleNamespace

from endpoint.answers.choices import speculative_decoding, usage


def choice(num_tokens=0, steps=()):
    ending = SimpleNamespace(num_cached_tokens=2)
    reached = SimpleNamespace(num_tokens=num_tokens)
    return SimpleNamespace(reached=reached, ending=ending, rounds=Counter(steps), steps=steps)


def test_a_prompt_counts_once_however_many_samples_it_has():
    generation = SimpleNamespace(prompts=[(1, 2, 3), (4, 5)], params=SimpleNamespace(n=2))
    counts = usage(generation, [choice(7), choice(8), choice(9), choice(10)])
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]) == (5, 34, 39)
    assert counts["prompt_tokens_details"] == {"cached_tokens": 4}


def test_rounds_whose_draft_was_rejected_whole_are_steps_of_the_histogram():
    counts = speculative_decoding([choice(steps=[*[(3, 0)] * 4, (3, 2), *[(0, 0)] * 9])], 3)
    assert counts["acceptance_histogram"] == [4, 0, 1, 0]
    assert (counts["num_spec_steps"], counts["draft_acceptance_rate"]) == (5, 2 / 15)


def test_a_detailed_answer_has_its_steps_in_order():
    steps = [(3, 2), (0, 0), (1, 0), (3, 3)]
    assert "per_step_drafted" not in speculative_decoding([choice(steps=steps)], 3)
    counts = speculative_decoding([choice(steps=steps)], 3, "detailed")
    assert (counts["per_step_drafted"], counts["per_step_accepted"]) == ([3, 1, 3], [2, 0, 3])
