"""What an engine says of sampling parameters is told as the error of the request's own field, in whole sentences."""

import pytest

from decoding import SamplingParams, Sequence
from decoding.sampling.token_history import dead_end
from endpoint.http.errors import refusal
from tests.decoding.grammar.tiny_grammars import TOKENS, grammars

WORDS = [[token] for token in range(4)]
CASES = {
    "one parameter": (
        {"bad_words": WORDS},
        [],
        "bad_words: it leaves no token after 0 output tokens; change it",
    ),
    "one parameter behind a token": (
        {"bad_words": [[0, 1], [0, 0], [2], [3]]},
        [0],
        "bad_words: it leaves no token after 1 output token; change it",
    ),
    "two parameters": (
        {"bad_words": WORDS, "min_tokens": 3},
        [1, 2],
        "bad_words: it and min_tokens leave no token after 2 output tokens; change one of them",
    ),
    "three parameters": (
        {"allowed_token_ids": [1], "bad_words": WORDS, "min_tokens": 3},
        [],
        "allowed_token_ids: it and bad_words and min_tokens leave no token after 0 output tokens; change one of them",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parameters_that_leave_no_token_are_told_with_a_verb_in_their_number(name):
    params, output, said = CASES[name]
    problem = dead_end(Sequence.create([1], SamplingParams(**params)), output, len(WORDS), stop_ids=())
    error = refusal(problem, None)
    assert error.message == said
    assert error.param == said.partition(":")[0]


def test_a_form_beside_a_parameter_is_told_by_the_field_that_asked_for_it():
    sequence = Sequence.create([1], SamplingParams(bad_words=[[TOKENS.index(b"a")]], structured={"regex": "a"}))
    sequence.matcher = grammars().matcher(sequence.params.structured)
    error = refusal(dead_end(sequence, [], len(TOKENS), stop_ids=()), "guided_regex")
    assert error.message == "bad_words: it and guided_regex leave no token after 0 output tokens; change one of them"
