"""The fixed text of an expression is never less than what llguidance finds that a text must go on with."""

import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from decoding.grammar.fixed_text import fixed_text

BYTES = LLTokenizer("byte")
EXACT = {
    "abc": 3,
    "a{1000}": 1000,
    "(a{1000}){1000}": 1_000_000,
    "^[a-z]{4}(a{1000}){1000}$": 1_000_003,  # a letter may have bytes that its first one leaves no choice of
    "(?:a{1000}[bc]){1000}": 1003,
    "(?:a{1000}b?c{500}|x)y": 1501,
    "(a?a){1000}": 1001,
    "(?P<name>ab){3}(?<other>c)(?i)": 7,
    "(?x) ( a{10} ) {3} # a{1000}": 30,
    r"\x61{5}\u{62}\u0063\.": 8,
    '"{5}': 10,  # JSON writes \" each time
    "é{100}": 200,
}
CHOICES = [
    "[a-z]{1,1000000}",
    "(a|b){1000000}",
    "(ab|cd){1000000}",
    r"\d{1000}",
    r"\p{L}{1000}",
    ".{1000}",
    "a{0,1000000}",
    '[^"]{1000}',
    "[]a]{1000}",
    "[[:alpha:]]{1000}",
    r"[\w-]{1000}",
]
ONE_CHARACTER = ["[a]{1000}", "[a-a]{1000}", r"[^\x00-`b-\x{10ffff}]{1000}", "[a&&[ab]]{1000}", r"[^\W\x00-`b-z]{1000}"]
NONSENSE = [
    "",
    "(((",
    ")))",
    "[",
    "\\",
    "a{",
    "{3}",
    "(?",
    "[[[",
    "a{99999999999999999999}",
    "|||",
    "(?<",
    "\\x{",
    "[^",
]


@pytest.mark.parametrize("pattern", EXACT)
def test_repetitions_write_text_out_and_choices_end_it(pattern):
    assert fixed_text(pattern).longest == EXACT[pattern]


@pytest.mark.parametrize("pattern", CHOICES)
def test_repetitions_of_a_choice_have_hardly_any(pattern):
    assert fixed_text(pattern).longest <= 4


@pytest.mark.parametrize("pattern", ONE_CHARACTER)
def test_a_set_that_may_have_one_character_is_no_choice(pattern):
    assert fixed_text(pattern).longest >= 1000


@pytest.mark.parametrize("pattern", NONSENSE)
def test_what_is_no_expression_has_a_number_too(pattern):
    assert fixed_text(pattern).longest >= 0


def test_repeated_groups_with_much_of_it_are_told_also_inside_of_others():
    assert fixed_text("x([a-z]|(b+){100}){3}").groups == ("(b+){100}", "([a-z]|(b+){100}){3}")
    assert fixed_text("[a-z]{4}(a|b){100}(abc){3}").groups == ()


def _random_pattern(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if not depth or kind < 0.25:
        return chance.choice(["a", "b", "ab", "[ab]", ".", "[a-z]", "aa", r"\d", "abc", "é", "[a]", r"\x61"])
    inner = [_random_pattern(chance, depth - 1) for _ in range(3)]
    if kind < 0.5:
        return inner[0] + inner[1]
    if kind < 0.65:
        return f"(?:{'|'.join(inner[: chance.choice([2, 3])])})"
    least = chance.choice([0, 1, 2, 3, 10])
    most = least + chance.choice([0, 1, 3])
    return f"(?:{inner[0]}){chance.choice(['*', '+', '?', f'{{{least}}}', f'{{{least},}}', f'{{{least},{most}}}'])}"


def _longest_forced(pattern: str, chance: random.Random) -> int:
    """The most bytes that llguidance finds forced, behind the bytes of a random text."""
    matcher, longest = LLMatcher(BYTES, LLMatcher.grammar_from_regex(pattern), log_level=0), 0
    for _ in range(40):
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little").nonzero()[0]
        longest = max(longest, len(matcher.compute_ff_tokens()))
        allowed = allowed[allowed < 256]
        if matcher.is_error() or not allowed.size:
            break
        matcher.try_consume_tokens([int(chance.choice([allowed[0], *allowed]))])
    return longest


@pytest.mark.parametrize("seed", range(10))
def test_no_random_expression_has_less_than_llguidance_finds(seed):
    chance, found = random.Random(seed), []
    for _ in range(120):
        pattern = _random_pattern(chance, chance.choice([2, 3, 4, 5]))
        forced = _longest_forced(pattern, chance)
        assert forced <= fixed_text(pattern).longest, pattern
        found.append(forced)
    assert max(found) > 5, "or nothing was compared"
