"""Limits of numbers in settings: what each rule takes, and what it says of what it refuses."""

from math import inf, nan
from types import SimpleNamespace

import pytest

from pipeline.limits import check_numbers


@pytest.mark.parametrize(
    ("rule", "allowed", "refused", "said"),
    [
        ("not_negative", (0, 0.5, 3, inf), (-1, -1e-9, -inf, nan), "not be negative"),
        ("at_least_1", (1, 1.5, inf), (0, 0.999, -1, nan), "be at least 1"),
        ("above_0", (1e-9, 2, inf), (0, -0.0, -1, nan), "be above 0"),
        ("seconds", (1e-9, 2, inf), (0, -1, nan), "be above 0 seconds"),
        ("finite_seconds", (1e-9, 2), (0, -1, inf, nan), "be above 0 seconds and finite"),
    ],
)
def test_a_rule_takes_what_it_says_and_names_the_field_and_the_value_of_what_it_refuses(rule, allowed, refused, said):
    for value in (None, *allowed):
        check_numbers(SimpleNamespace(size=value), "serve.", **{rule: ("size",)})
    for value in refused:
        with pytest.raises(ValueError, match=rf"^serve\.size must {said}, got {value}$"):
            check_numbers(SimpleNamespace(size=value), "serve.", **{rule: ("size",)})
