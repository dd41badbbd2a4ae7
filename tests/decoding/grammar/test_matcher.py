"""A mask is a pure function of grammar and tokens, whatever the matcher was asked before."""

import random

import pytest
from transformers import AutoTokenizer

from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from tests.decoding.grammar.tiny_grammars import END, STRUCTURED, TOKENS, allowed, fulfils, grammars, text_of

GRAMMARS = grammars()


def _written(structured: Structured, chance: random.Random, most: int = 40) -> list[int]:
    """A random output, to its end or to `most` tokens."""
    matcher, tokens = GRAMMARS.matcher(structured), []
    while len(tokens) < most:
        token = chance.choice(allowed(matcher.mask(tokens)))
        tokens.append(token)
        if token == END:
            break
    return tokens


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_random_outputs_that_end_are_what_was_asked_for(structured):
    chance, num_ended = random.Random(2), 0
    for _ in range(30):
        tokens = _written(structured, chance)
        if tokens[-1] == END:
            num_ended += 1
            assert fulfils(text_of(tokens), structured)
    assert num_ended


def test_behind_an_end_token_or_a_token_that_is_not_allowed_a_position_has_no_mask():
    matcher = GRAMMARS.matcher(Structured(choice=["ab", "abc"]))
    a, b, z = TOKENS.index(b"a"), TOKENS.index(b"b"), TOKENS.index(b"{")
    assert matcher.mask([], [z]) is None
    assert matcher.mask([], [a, z, b]) is None
    assert matcher.mask([], [a, b, END]) is None
    assert END in allowed(matcher.mask([], [a, b]))


def test_the_end_token_is_allowed_only_where_the_output_may_end():
    matcher = GRAMMARS.matcher(Structured(choice=["ab", "abc"]))
    a, b, c = (TOKENS.index(letter) for letter in (b"a", b"b", b"c"))
    ends = [END in allowed(matcher.mask([a, b, c][:n])) for n in range(4)]
    assert ends == [False, False, True, True]
    assert allowed(matcher.mask([a, b, c])) == [END]


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_a_token_is_allowed_exactly_where_the_mask_has_it(structured):
    chance = random.Random(5)
    for _ in range(3):
        tokens, matcher, num_committed = _written(structured, chance), GRAMMARS.matcher(structured), 0
        for length in sorted(chance.sample(range(len(tokens)), min(4, len(tokens)))):
            num_committed = chance.randint(num_committed, length)
            committed, drafted = tokens[:num_committed], tokens[num_committed:length]
            found = [token for token in range(len(TOKENS)) if matcher.allows(committed, [*drafted, token])]
            assert found == allowed(GRAMMARS.matcher(structured).mask(tokens[:length]))


def test_tokens_behind_an_end_token_are_not_allowed():
    matcher = GRAMMARS.matcher(Structured(choice=["ab", "abc"]))
    ab, c = TOKENS.index(b"ab"), TOKENS.index(b"c")
    assert matcher.allows([], [ab, END])
    assert not matcher.allows([], [ab, END, c])
    assert not matcher.allows([], [ab, END, END])
    assert matcher.allows([ab], [c, END])


def test_forced_tokens_spell_what_alone_is_allowed():
    matcher = GRAMMARS.matcher(STRUCTURED[0])
    assert text_of(matcher.forced([])) == '{"ab":'
    assert matcher.forced(matcher.forced([])) == []


def test_a_grammar_that_no_token_continues_says_so():
    matcher, a = GRAMMARS.matcher(Structured(grammar='start: "a" "z"')), [TOKENS.index(b"a")]
    assert allowed(matcher.mask(a)) == []
    assert "cannot be followed" in matcher.dead_end
    assert matcher.mask(a) is not None, "and says it again"


def test_a_grammar_that_no_token_begins_is_refused_before_a_row_runs():
    assert "no token can begin what it asks for" in grammars().problem_with(Structured(choice=["zzz"]))


def test_a_matcher_goes_on_after_a_dead_end():
    matcher, a = GRAMMARS.matcher(Structured(grammar='start: "a" "z" | "ab"')), TOKENS.index(b"a")
    assert allowed(matcher.mask([], [a])) == [TOKENS.index(b"b")]
    assert allowed(matcher.mask([a])) == [TOKENS.index(b"b")]
    assert allowed(matcher.mask([])) is not None
    assert matcher.dead_end is None


def test_committed_tokens_that_the_grammar_does_not_allow_leave_no_token():
    matcher = GRAMMARS.matcher(Structured(choice=["ab"]))
    assert allowed(matcher.mask([TOKENS.index(b"{")])) == []
    assert "not what the grammar allows" in matcher.dead_end


def test_only_the_most_recent_grammars_are_kept():
    few = grammars(most_kept=2)
    choices = [Structured(choice=[text]) for text in ("a", "b", "c")]
    for _ in range(2):
        assert [few.problem_with(choice) for choice in choices] == [None] * 3
    assert few.num_compiled == 6
    assert few.problem_with(choices[-1]) is None
    assert few.num_compiled == 6
    assert len(few._compiled) == 2


def test_a_row_that_wears_a_lexer_out_costs_no_other_row_its_text():
    """Copies of a grammar share llguidance's lexer, and the limit of what it may construct."""
    tokenizer = AutoTokenizer.from_pretrained("examples/tiny_pair/target")
    table = TokenTable.of_tokenizer(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    letters, back = "abcdefghij", "zyxwvutsrq"
    ways = (f".*{first}.{{{30 + 7 * n}}}{last}.*" for n, (first, last) in enumerate(zip(letters, back, strict=True)))
    structured = Structured(regex=f"({'|'.join(ways)})z")
    texts = [
        "the cat and the dog went to a house on the hill and then the other one came along to see it",
        "my very own jumping zebra quickly vexed big fox and liked waltz",
        "quiz jock by nymph, vex dwarf; over the hills and far away they all go home",
        "we promptly judged antique ivory buckles for the next prize in town today",
    ]
    shared = Grammars(lambda: table)
    for text in texts:
        tokens, ends = tokenizer.encode(text, add_special_tokens=False), []
        for each in (shared, Grammars(lambda: table)):
            matcher, dead = each.matcher(structured), None
            for length in range(len(tokens)):
                matcher.mask(tokens[:length])
                if dead is None and matcher.dead_end is not None:
                    dead = length
            ends.append(dead)
        assert ends[0] == ends[1]


def test_all_that_the_rounds_of_a_json_text_need_is_compiled_where_its_request_is_checked():
    own, free = grammars(), Structured(json_object=True)
    assert own.problem_with(free) is None
    checked = own.num_compiled
    matcher = own.matcher(free)
    matcher.mask([], [])
    matcher.foreseen([])
    assert (checked, own.num_compiled) == (2, 2)
