"""Which prompts are held out."""

from training.corpus.rows import is_held_out

PROMPTS = [(number, number % 7, 3) for number in range(4000)]


def test_the_split_is_stable():
    """A change of these would train on rows that an earlier draft was evaluated on."""
    assert [number for number in range(100) if is_held_out((number,), 0.05)] == [10, 14, 16, 25, 38, 71, 85]


def test_the_share_is_about_what_was_asked_for():
    shares = [sum(is_held_out(prompt, share) for prompt in PROMPTS) / len(PROMPTS) for share in (0.0, 0.05, 0.3)]
    assert shares[0] == 0
    assert abs(shares[1] - 0.05) < 0.015
    assert abs(shares[2] - 0.3) < 0.03


def test_a_larger_share_holds_out_the_same_prompts_and_more():
    small, large = ({prompt for prompt in PROMPTS if is_held_out(prompt, share)} for share in (0.05, 0.2))
    assert small < large
