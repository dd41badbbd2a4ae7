"""The fixed text of an expression is never less than what llguidance finds that a text must go on with."""

import random
import tracemalloc

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
    r"\p{Zl}{100}": 300,
    r"\p{ gc = Paragraph_Separator }{100}": 300,
    "a{ 100 }": 100,
    "a{000000000000100}": 100,
    r"\U{61}{10}\x{0000000062}": 11,
    r"\n{100}": 200,
    "(?<a[>x)([b]{30}){3}": 361,  # a set that is no choice counts four bytes
    "(?x)(?:a{30} ?){3}": 90,
    "(?x)(?:a{30}+ ?){3}": 60,
    "(?x)(?-x:(?: ){100})": 100,
    "(?x: a ) {100}": 101,
    "(?x)( ?-x: {100})": 100,
    r"(?x)(?:\x{ 6 1 }){1 0 0}": 100,
    "(?x)(?:\x1c){100}": 600,
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
    r"[\x20-\x7e]{1000}",
    r"[\u0020-\u007e]{1000}",
    r"[\p{L} ]{1000}",
    r"[\p{Lu}]{1000}",
    r"[\s\S]{1000}",
    r"[\W]{1000}",
    r"[^\x00-\x1f]{1000}",
    r"[^\p{L}]{1000}",
    "[a-]{1000}",
    "[-a]{1000}",
    r"[a\-]{1000}",
    "[[:^alpha:]]{1000}",
    "[a ]{1000}",
    "(?x)(?-x)[a ]{1000}",
    "(?x)[ ]a]{1000}",
    "(?x)[ ^ ]a]{1000}",
    "(?x)[+ ?]{1000}",
]
ONE_CHARACTER = [
    "[a]{1000}",
    "[a-a]{1000}",
    r"[^\x00-`b-\x{10ffff}]{1000}",
    "[a&&[ab]]{1000}",
    r"[^\W\x00-`b-z]{1000}",
    "[[a]]{1000}",
    "[a[a]]{1000}",
    "(?x)[a ]{1000}",
    "(?x:[ a ]){1000}",
    r"[\x61-\u0061]{1000}",
    r"[\n\x0a]{1000}",
    r"[\p{Zl}]{1000}",
    r"[^\P{Zl}]{1000}",
    r"[^\p{L}\p{M}\p{N}\p{P}\p{S}\p{C}\p{Zs}\p{Zp}]{1000}",
    r"\p{isZl}{1000}",
    "\\p{" + "é" * 1000 + "Zl}{1000}",
    r"\p{gcb=CR}{1000}",
    r"\p{gc!=Zl}{1000}",
    "(?x)(?:[a]{30} ?){30}",
]
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


def test_repetitions_write_text_out_and_choices_end_it():
    assert {pattern: fixed_text(pattern).longest for pattern in EXACT} == EXACT
    assert [pattern for pattern in CHOICES if fixed_text(pattern).longest > 4] == []
    assert [pattern for pattern in ONE_CHARACTER if fixed_text(pattern).longest < 1000] == []
    assert [pattern for pattern in NONSENSE if fixed_text(pattern).longest < 0] == [], "what is no expression has none"


def test_repeated_groups_with_much_of_it_are_told_also_inside_of_others():
    assert tuple(fixed_text("x([a-z]|(b+){100}){3}").groups()) == ("(b+){100}", "([a-z]|(b+){100}){3}")
    assert tuple(fixed_text("[a-z]{4}(a|b){100}(abc){3}").groups()) == ()


LONG = {
    "one group with a quantifier after the other": ("(" + "a" * 20_000 + ")" + "*" * 20_000, 1),
    "groups in each other": ("(" * 200 + "a" * 20_000 + "){2}" * 200, 200),
    "groups behind each other": ("(a{30})*[bc]" * 3000, 3000),
}


@pytest.mark.parametrize("name", LONG)
def test_long_expressions_are_not_copied_for_their_groups(name):
    pattern, num_groups = LONG[name]
    tracemalloc.start()
    try:
        found = fixed_text(pattern)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.places) == num_groups
    assert peak < 40 * len(pattern)


@pytest.mark.parametrize("start", ["\\p{", "(?<a", "[", "[^[", "{ ", "(?x", "\\x{0", "a{999999999999}"])
def test_what_has_no_end_is_read_once(start):
    assert fixed_text(start * 20_000).longest >= 0


def test_a_number_of_bytes_has_few_digits():
    assert len(str(fixed_text("a{999999999}" + "{999999999}" * 1000).longest)) < 20


SINGLES = [
    "é",
    "[a]",
    r"\x61",
    "[[a]]",
    "[a[a]]",
    "[[a][ab]]",
    "[a ]",
    "[ a]",
    " ",
    r"\ ",
    "# a",
    r"\p{Zl}",
    r"[\p{Zp}]",
]
SINGLES += [r"\p{L}", r"\P{Zl}", r"[^\P{Zl}]", r"[\s\S]", r"[\x61-\u0062]", r"[\n\x0a]", r"\n", r"\p{gcb=CR}", "[a-]"]


def _random_pattern(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if not depth or kind < 0.25:
        return chance.choice(["a", "b", "ab", "[ab]", ".", "[a-z]", "aa", r"\d", "abc", *SINGLES])
    inner = [_random_pattern(chance, depth - 1) for _ in range(3)]
    if kind < 0.5:
        return inner[0] + inner[1]
    if kind < 0.65:
        return f"(?:{'|'.join(inner[: chance.choice([2, 3])])})"
    if kind < 0.75:
        beginning = chance.choice(["?x:", "?x)(", "?-x:", "?-x)(", "?i:", " ?:"])
        return f"({beginning}{inner[0]}{chance.choice(['', ' ', ' b'])})"
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


@pytest.mark.parametrize("seed", range(3))
def test_no_random_expression_has_less_than_llguidance_finds(seed):
    chance, found = random.Random(seed), []
    for _ in range(120):
        pattern = _random_pattern(chance, chance.choice([2, 3, 4, 5]))
        forced = _longest_forced(pattern, chance)
        assert forced <= fixed_text(pattern).longest, pattern
        found.append(forced)
    assert max(found) > 5, "or nothing was compared"
