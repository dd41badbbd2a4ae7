"""Limits of numbers in settings: one checker, which names the field as the configuration does."""

from collections.abc import Callable, Sequence
from math import inf

_RULES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "not_negative": ("not be negative", lambda value: value >= 0),
    "at_least_1": ("be at least 1", lambda value: value >= 1),
    "above_0": ("be above 0", lambda value: value > 0),
    "seconds": ("be above 0 seconds", lambda value: value > 0),
    "finite_seconds": ("be above 0 seconds and finite", lambda value: 0 < value < inf),
}


def check_numbers(settings: object, section: str, **names_by_rule: Sequence[str]) -> None:
    """Raise ValueError for the first number that breaks its rule. A field that is None is not set, which is allowed."""
    for rule, names in names_by_rule.items():
        said, holds = _RULES[rule]
        for name in names:
            value = getattr(settings, name)
            if value is not None and not holds(value):
                raise ValueError(f"{section}{name} must {said}, got {value}")
