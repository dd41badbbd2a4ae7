"""Rounds replayed on a text, counted by hand."""

from pipeline.counts import Counts
from training.evaluation.kind_score import replay

TEXT = (10, 11, 12, 13, 14, 15, 16)
END = 16
FAR = 1000


def rounds(num_rounds: int, num_drafted: int, num_accepted: int, per_position: tuple[int, ...]) -> Counts:
    return Counts(
        num_rounds=num_rounds,
        num_draft_tokens=num_drafted,
        num_accepted_tokens=num_accepted,
        accepted_per_position=per_position,
    )


def drafted(*steps: str) -> list[list[int]]:
    """Return drafts of the text: at each place of each step `=` is the text's own token, `x` another, `e` an end."""
    others = {"x": -5, "e": END}
    return [
        [TEXT[start + step] if mark == "=" else others[mark] for start, mark in enumerate(marks)]
        for step, marks in enumerate(steps)
    ]


def test_a_round_accepts_up_to_the_first_other_token_and_the_next_begins_behind_the_token_after_it():
    # == then x: 2 accepted, and the target's 12. From 13: x, so none, and 13. From 14: 14 and 15, and the target's 16.
    found = replay(TEXT, drafted("==xx===", "=x=x==", "xx=xx"), FAR, {99}, FAR)
    assert found == rounds(3, 9, 4, (2, 2, 0))


def test_a_row_that_may_hold_no_more_tokens_drafts_fewer():
    found = replay(TEXT, drafted("=======", "======", "====="), len(TEXT), {99}, FAR)
    assert found == rounds(2, 3 + 2, 3 + 2, (2, 2, 1))


def test_nothing_is_drafted_behind_an_end_token():
    found = replay(TEXT, drafted("=======", "======", "=====", "===="), FAR, {END}, FAR)
    assert found == rounds(2, 4 + 2, 4 + 2, (2, 2, 1, 1))


def test_an_end_token_that_is_rejected_shortens_the_draft():
    found = replay(TEXT[:1], [[END], [-1], [-1]], FAR, {END}, FAR)
    assert found == rounds(1, 1, 0, (0, 0, 0))


def test_a_draft_without_room_or_a_first_pair_drafts_nothing():
    found = replay(TEXT, drafted("=======", "======"), FAR, {99}, max_drafted_len=3, first=1)
    assert found == rounds(5, 2, 2, (1, 1))


def test_a_close_call_ends_its_round():
    assert replay(TEXT, drafted("=======", "======", "====="), FAR, {99}, FAR) == rounds(2, 6, 6, (2, 2, 2))
    found = replay(TEXT, drafted("=======", "======", "====="), FAR, {99}, FAR, close_calls={1})
    assert found == rounds(3, 9, 1 + 3 + 1, (3, 1, 1))
