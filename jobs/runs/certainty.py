"""Certainty: what a sample of rows says of all rows of a run."""

from math import exp, lgamma

CONFIDENCE = 0.99


def most_differing(num_rows: int, num_audited: int, num_differing: int, confidence: float = CONFIDENCE) -> float:
    """Return the largest share of `num_rows` that may differ if that many differ in a random sample without repeats.

    With more differing rows, so few would be in the sample with a chance of less than 1 - `confidence` (the exact bound
    of Clopper and Pearson, for the hypergeometric distribution).
    """
    low, high = num_differing, num_rows - (num_audited - num_differing)
    while low < high:
        middle = (low + high + 1) // 2
        if _chance_of_at_most(num_differing, num_rows, num_audited, middle) >= 1 - confidence:
            low = middle
        else:
            high = middle - 1
    return low / max(1, num_rows)


def _chance_of_at_most(found: int, num_rows: int, num_audited: int, num_differing: int) -> float:
    """Return the chance that a sample has at most `found` of the `num_differing` rows."""
    fewest = max(0, num_audited - (num_rows - num_differing))
    all_samples = _log_choices(num_rows, num_audited)
    return sum(
        exp(
            _log_choices(num_differing, each) + _log_choices(num_rows - num_differing, num_audited - each) - all_samples
        )
        for each in range(fewest, found + 1)
    )


def _log_choices(number: int, taken: int) -> float:
    return lgamma(number + 1) - lgamma(taken + 1) - lgamma(number - taken + 1)
