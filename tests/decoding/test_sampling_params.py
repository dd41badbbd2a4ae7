"""Every value that cannot be meant is a ValueError that says which field, what it got and what is allowed."""

import math

import pytest

from decoding import SamplingParams

NAN, INF = math.nan, math.inf
WRONG_TYPES = ["1", None, True, [1], {}, object(), 1j]

INVALID = {
    "temperature": [-0.1, 0.001, 100.5, NAN, INF, -INF, 10**400, *WRONG_TYPES],
    "top_k": [-1, 1.5, 2.0, NAN, 2**70, *WRONG_TYPES],
    "top_p": [0, 0.0, -0.1, 1.1, NAN, INF, *WRONG_TYPES],
    "min_p": [-0.1, 1.1, NAN, INF, *WRONG_TYPES],
    "repetition_penalty": [0, -1.0, 10.1, NAN, INF, 10**400, *WRONG_TYPES],
    "presence_penalty": [-2.1, 2.1, NAN, -INF, *WRONG_TYPES],
    "frequency_penalty": [-2.1, 2.1, NAN, -INF, *WRONG_TYPES],
    "logit_bias": [
        {1: 101.0}, {1: -101}, {1: NAN}, {1: INF}, {1: "2"}, {1: None}, {1: True}, {-1: 1.0}, {"x": 1.0}, {"-1": 1.0},
        {1.5: 1.0}, {None: 1.0}, {True: 1.0}, {(1, 2): 1.0}, {2**70: 1.0}, {str(2**70): 1.0}, {"": 1.0},
        [(1, 2.0)], "1", None, 5,
    ],
    "allowed_token_ids": [[], (), [-1], [1.0], ["1"], [True], [None], [[1]], [2**70], 5, "12", {1}, {1: 2}],
    "bad_words": [
        "abc", None, 5, {"a"}, [""], [5], [None], ["a" * 101], [[]], [[-1]], [["a"]], [[1.0]], [[True]], [[2**70]],
        [{1}], ["a"] * 1001, [[1]] * 2001, [[1] * 405],
    ],
    "seed": [1.0, "1", True, NAN, -(2**63) - 1, 2**64, [1]],
    "n": [0, -1, 1.0, NAN, 2**70, *WRONG_TYPES],
    "max_tokens": [0, -1, 1.0, NAN, 2**70, *WRONG_TYPES],
    "min_tokens": [-1, 1.0, NAN, 2**70, *WRONG_TYPES],
    "stop": [[""], [1], [None], ["a", b"b"], ("a", ""), "", None, 5, {"a"}, {"a": 1}, b"x"],
    "stop_token_ids": [[-1], [1.0], ["1"], [True], [None], [[1]], [2**70], None, 5, "12", {1}, {1: 2}],
    "ignore_eos": [0, 1, "true", None, [], NAN],
    "logprobs": [-1, 21, 1.0, "1", True, NAN, [1]],
    "structured": ["a", 5, [], True],
}  # fmt: skip


def _told(name: str, value: object) -> str | None:
    """Return what is said against a value."""
    try:
        SamplingParams(**{name: value})
    except ValueError as error:
        return str(error)
    return None


def _names(told: str | None, name: str, value: object) -> bool:
    """Tell whether an error names the field and the value, and is no longer than a screen."""
    shown = (value,) if isinstance(value, str) and name == "stop" else value
    in_part = [repr(shown)[:1000], repr(tuple(shown) if isinstance(shown, list) else shown)[:1000]]
    if told is None or f"sampling.{name} must be " not in told:
        return False
    return any(text in told for text in in_part) and len(told) < 1300


def test_every_field_has_invalid_values_each_an_error_that_names_field_and_value():
    assert set(INVALID) == set(SamplingParams.__dataclass_fields__)
    tried = [(name, value, _told(name, value)) for name, values in INVALID.items() for value in values]
    assert [(name, value, told) for name, value, told in tried if not _names(told, name, value)] == []


VALID = {
    "temperature": [0, 0.0, 0.01, 1, 100.0],
    "top_k": [0, 1, 10**6],
    "top_p": [1, 1.0, 1e-6, 0.5],
    "min_p": [0, 0.0, 1, 0.5],
    "repetition_penalty": [0.1, 1, 10],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2.0, 2],
    "logit_bias": [{}, {3: -100}, {"3": 100.0}],
    "allowed_token_ids": [None, [5], (3, 3, 1)],
    "bad_words": [(), [], ["a", [1, 2]], [" "], ["a" * 100] * 1000, ([1] * 404,) * 2000],
    "seed": [None, 0, -(2**63), 2**64 - 1],
    "n": [1, 7],
    "max_tokens": [1, 10**6],
    "min_tokens": [0, 256],
    "stop": [(), [], "abc", ["a", "b"]],
    "stop_token_ids": [[], (5,), [1, 2]],
    "ignore_eos": [True, False],
    "logprobs": [None, 0, 20],
    "structured": [None, {"regex": "a"}],
}


def test_valid_values_are_taken():
    assert set(VALID) == set(INVALID)
    tried = {(name, repr(value)[:99]): _told(name, value) for name, values in VALID.items() for value in values}
    assert {what: told for what, told in tried.items() if told is not None} == {}


def test_one_stop_string_is_a_list_of_one_and_logit_bias_keys_become_integers():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(logit_bias={"7": 1}).logit_bias == {7: 1.0}


def test_allowed_token_ids_are_sorted_and_lists_among_bad_words_become_tuples():
    assert SamplingParams(allowed_token_ids=[7, 3, 7]).allowed_token_ids == (3, 7)
    assert SamplingParams(bad_words=["a", [1, 2]]).bad_words == ("a", (1, 2))


def test_more_min_tokens_than_max_tokens_is_an_error_that_shows_both():
    with pytest.raises(ValueError, match=r"min_tokens must not exceed max_tokens, got 9 > 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_each_penalty_looks_at_token_counts(name):
    assert not SamplingParams().uses_token_counts
    assert SamplingParams(**{name: 1.5}).uses_token_counts
