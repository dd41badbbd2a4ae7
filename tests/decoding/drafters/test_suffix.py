"""The suffix drafter proposes what followed elsewhere, most frequent first, with a chance; its memory is bounded."""

import random
import tracemalloc

import pytest

from decoding import SamplingParams, Sequence
from decoding.drafters.lookups.known_texts import Calibration, Continuations, KnownByScope
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.sampling.rows import ExtensionLimit, Rows
from decoding.sampling.rules import COUPLED
from decoding.scope import Scope
from tests.decoding.tiny import drafted, rows_over

PROMPT, OTHER = [1, 2, 3, 4], [9, 8, 7, 6]


def rows_of(*sequences: Sequence, limit: int = 4, verification: str = "coupled") -> Rows:
    return rows_over(sequences, [limit] * len(sequences), verification)


def sample(prompt: list[int], *output: int, row: int = 0, number: int = 0, **params: object) -> Sequence:
    sequence = Sequence.create(prompt, SamplingParams(max_tokens=500, **params), row=row, sample=number)
    sequence.output_token_ids += output
    return sequence


def proposal(drafter: SuffixDrafter, sequence: Sequence, **options: object) -> list[int]:
    """Return what the drafter proposes for a sequence that is new to it."""
    drafter.admit([0], [sequence])
    return drafted(drafter.propose(rows_of(sequence, **options)))[0]


def observe(drafter: SuffixDrafter, rows: Rows, num_drafted: int = 0, accepted: int = 0) -> None:
    drafter.observe(rows, [num_drafted] * len(rows.sequences), [accepted] * len(rows.sequences))


TEXT = [30, 31, 32, 33, 34]
OFTEN = [(PROMPT, 5, 10), (PROMPT, 5, 11), (PROMPT, 5, 11)]
CASES = {  # prompts and outputs that were seen, a new one, and what is proposed behind it
    "what followed in a finished sample of the same prompt": ([(PROMPT, 5, 6, 7, 8, 9)], (PROMPT, 5), [6, 7, 8]),
    "what followed in outputs of other prompts": ([(PROMPT, 20, 21, 22, 23, 24)], (OTHER, 20, 21), [22, 23, 24]),
    "what followed in its own prompt": ([], ([*TEXT, 40, 30, 31],), [32, 33, 34]),
    "nothing of another prompt": ([(TEXT,)], (OTHER, 30, 31), []),
    "the more frequent continuation": (OFTEN, (PROMPT, 5), [11]),
    "of equally frequent ones the latest": ([*OFTEN, (PROMPT, 5, 10)], (PROMPT, 5), [10]),
    "what follows the longest context, even if a shorter one is more frequent": (
        [*[(OTHER, 50, 6, 99)] * 5, (PROMPT, 4, 5, 6, 7)],
        (OTHER, 4, 5, 6),
        [7],
    ),
    "the more certain continuation of the own prompt": (
        [row for n in range(3) for row in ((PROMPT, 20, 21, 22), (OTHER, 20, 21, 70 + n))],
        (PROMPT, 20, 21),
        [22],
    ),
    "a text in a loop to the full length": ([], (PROMPT, *[5] * 20), [5] * 8),
}


@pytest.mark.parametrize("case", CASES)
def test_it_proposes(case):
    seen, new, expected = CASES[case]
    drafter = SuffixDrafter()
    for number, (prompt, *output) in enumerate(seen):
        drafter.admit([0], [sample(prompt, *output, number=number)])
    assert proposal(drafter, sample(*new, number=len(seen)), limit=len(expected) or 4) == expected


def test_it_proposes_what_a_running_sample_of_the_same_prompt_wrote_a_moment_ago():
    drafter, ahead, behind = SuffixDrafter(), sample(PROMPT), sample(PROMPT, number=1)
    drafter.admit([0, 1], [ahead, behind])
    rows = rows_of(ahead, behind)
    drafter.propose(rows)
    ahead.output_token_ids += [5, 6, 7]
    behind.output_token_ids += [5]
    observe(drafter, rows)
    assert drafted(drafter.propose(rows))[1] == [6, 7]


def test_the_survival_of_what_is_looked_up_never_rises_and_is_as_long_as_the_proposal():
    chance = random.Random(3)
    drafter = SuffixDrafter()
    for number in range(30):
        drafter.admit([0], [sample(PROMPT, *(chance.randint(1, 3) for _ in range(40)), number=number)])
    sequence = sample(PROMPT, 1, 2, 3, 1, number=50)
    drafter.admit([0], [sequence])
    rows = rows_of(sequence, limit=8)
    (lookup_survival,) = drafter.lookup_survival(rows)
    assert lookup_survival == sorted(lookup_survival, reverse=True)
    assert all(0 < chance_of_acceptance < 1 for chance_of_acceptance in lookup_survival)
    assert len(lookup_survival) == len(drafted(drafter.propose(rows))[0]) > 0


def test_matches_are_offered_less_after_rejections_and_more_after_acceptances():
    offered = {}
    for accepted in (0, 1):
        drafter = SuffixDrafter()
        drafter.admit([0], [sample(PROMPT, 5, 6)])
        for number in range(1, 40):
            sequence = sample(PROMPT, 5, number=number)
            drafter.admit([0], [sequence])
            rows = rows_of(sequence, limit=1)
            before = drafter.lookup_survival(rows)[0]
            drafter.propose(rows)
            observe(drafter, rows, num_drafted=1, accepted=accepted)
        offered[accepted] = before
    assert not offered[0] or offered[0][0] < 0.2
    assert offered[1][0] > 0.8


def test_a_calibration_counts_a_kind_up_to_its_first_rejected_token():
    calibration = Calibration()
    for _ in range(1000):
        calibration.observe(["a", "b", "b", "c"], num_accepted=2)
    assert calibration.rate("a", 0.5) > 0.95
    assert calibration.rate("b", 0.5) == pytest.approx(0.5, abs=0.02)
    assert calibration.rate("c", 0.7) == 0.7


def test_memory_is_bounded_and_the_oldest_is_forgotten_first():
    max_entries = 100
    continuations = Continuations(max_entries)
    for context in range(20 * max_entries):
        continuations.add(context, context % 7)
        assert continuations._young.num_entries + continuations._old.num_entries <= 2 * max_entries
    assert continuations.best(20 * max_entries - 1) is not None
    assert continuations.best(0) is None


def test_a_full_index_takes_less_memory_than_it_says():
    tracemalloc.start()
    continuations = Continuations(50_000)
    chance = random.Random(1)
    for _ in range(150_000):
        continuations.add(chance.getrandbits(60) % 40_000 * 12345678901234, chance.getrandbits(17))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 4 * 2 * 50_000 * 70  # a quarter of 200,000 entries, 70 MB for all


def test_counts_of_both_generations_add_up():
    continuations = Continuations(4)
    for token in (1, 1, 2, 2, 2):
        continuations.add(77, token)
    continuations.add(1, 0)
    continuations.add(2, 0)  # full: a new generation begins
    for token in (1, 1):
        continuations.add(77, token)
    assert continuations.best(77) == (1, 4, 7)


def test_under_rejection_a_row_does_not_look_at_what_its_own_noise_wrote():
    """Rows with a seed of their own share their noise: it would test the copied token with what made that token."""
    expectations = [("coupled", 3, [6, 7])]
    expectations += [
        (rule, seed, found) for rule in ("rejection", "unadjusted") for seed, found in ((3, []), (4, [6, 7]))
    ]
    for verification, seed, expected in expectations:
        drafter = SuffixDrafter()
        drafter.admit([0], [sample(PROMPT, 5, 6, 7, row=0, seed=3)])
        found = proposal(drafter, sample(PROMPT, 5, row=1, seed=seed), limit=2, verification=verification)
        assert found == expected


def test_a_row_that_was_scored_again_is_not_learned_twice():
    drafter, sequence = SuffixDrafter(), sample(PROMPT, 5, 6, 7)
    for _ in range(2):
        proposal(drafter, sequence)
        assert drafter._known.of("").continuations.best(hash((5,)) & ((1 << 60) - 1)) == (6, 1, 1)


def test_texts_that_were_written_while_nothing_was_looked_up_are_learned_with_the_next_lookup():
    """In a rest nothing is observed, and a row that ends is replaced by the next one in its slot."""
    drafter, written = SuffixDrafter(), sample(PROMPT)
    drafter.admit([0], [written])
    assert proposal(drafter, written, limit=0) == []
    written.output_token_ids += [5, 6, 7, 8]
    assert proposal(drafter, sample(OTHER, 5, 6, row=1), limit=2) == [7, 8]


def test_of_many_texts_that_were_written_while_nothing_was_looked_up_the_last_ones_are_learned():
    """To learn all of them would take longer than the rounds in which a drafter is tried."""
    drafter = SuffixDrafter()
    for number in range(100):
        drafter.admit([0], [sample(PROMPT, 100 + number, 300 + number, row=number)])
    assert proposal(drafter, sample(OTHER, 100, row=100), limit=1) == []
    assert proposal(drafter, sample(OTHER, 199, row=101), limit=1) == [399]


def test_a_round_in_which_a_row_may_draft_nothing_does_not_decide_what_is_offered_in_the_next_one():
    """Such as the first round of a drafter's rest, after which nothing is observed."""
    drafter, sequence = SuffixDrafter(), sample(PROMPT, 5, 6, 7, 5)
    drafter.admit([0], [sequence])
    assert drafted(drafter.propose(rows_of(sequence, limit=0))) == [[]]
    sequence.output_token_ids += [6]
    assert drafter.lookup_survival(rows_of(sequence))[0]
    assert drafted(drafter.propose(rows_of(sequence)))[0][0] == 7


@pytest.mark.parametrize(("texts", "expected"), [("", [6, 7, 8]), ("another", [])])
def test_a_row_is_offered_only_what_was_written_in_its_scope(texts, expected):
    drafter = SuffixDrafter()
    drafter.admit([0], [sample(PROMPT, 5, 6, 7, 8, 9)])
    row = sample(PROMPT, 5, number=1)
    row.scope = Scope(texts=texts)
    assert proposal(drafter, row, limit=3) == expected
    assert drafter.continue_draft(0, [6], ExtensionLimit(2, 0.0), COUPLED).tokens == expected[1:]


def test_what_is_accepted_in_one_scope_says_nothing_of_another():
    known = KnownByScope()
    known.of("one").calibration.observe(["kind"] * 100, 100)
    assert known.of("one").calibration.rate("kind", 0.5) > 0.9
    assert known.of("other").calibration.rate("kind", 0.5) == 0.5


def test_the_scope_that_was_used_least_recently_is_forgotten_where_all_hold_too_much():
    known = KnownByScope(max_entries=100)
    for scope in ("first", "second", "third"):
        for context in range(30):
            known.of(scope).continuations.add(context, 1)
        known.count(known.of(scope))
    known.of("first")
    for context in range(1000, 1025):
        known.of("fourth").continuations.add(context, 1)
    known.count(known.of("fourth"))
    held = {scope: 0 in known.of(scope).continuations for scope in ("first", "second", "third")}
    assert held == {"first": True, "second": False, "third": True}


def test_one_scope_alone_is_never_forgotten():
    known = KnownByScope(max_entries=10)
    for context in range(100):
        known.of("").continuations.add(context, 1)
        known.count(known.of(""))
    assert all(context in known.of("").continuations for context in range(100))
