"""A mask is a pure function of grammar and tokens, whatever the matcher was asked before."""

import random

import numpy as np
import pytest
from transformers import AutoTokenizer

from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from tests.decoding.grammar.tiny_grammars import END, STRUCTURED, TABLE, TOKENS, allowed, fulfils, grammars, text_of

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
def test_a_matcher_that_was_asked_anything_answers_as_a_fresh_one(structured):
    chance = random.Random(1)
    asked = GRAMMARS.matcher(structured)
    tokens = _written(structured, chance)
    committed = 0
    for _ in range(60):
        committed = min(len(tokens) - 1, committed + chance.randint(0, 2))
        draft = tokens[committed : committed + chance.randint(0, 4)]
        draft += [chance.randrange(len(TOKENS)) for _ in range(chance.randint(0, 3))]
        if chance.random() < 0.2:
            asked.forced(tokens[:committed])
        fresh = GRAMMARS.matcher(structured)
        assert allowed(asked.mask(tokens[:committed], draft)) == allowed(fresh.mask(tokens[:committed], draft))


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_random_outputs_that_end_are_what_was_asked_for(structured):
    chance, num_ended = random.Random(2), 0
    for _ in range(30):
        tokens = _written(structured, chance)
        if tokens[-1] == END:
            num_ended += 1
            assert fulfils(text_of(tokens), structured)
    assert num_ended


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_masks_are_those_that_llguidance_has_behind_each_token(structured):
    chance = random.Random(4)
    for _ in range(5):
        tokens = _written(structured, chance)
        matcher, inner = GRAMMARS.matcher(structured), GRAMMARS._of(structured).start.deep_copy()
        for length in range(len(tokens)):
            bits = np.frombuffer(inner.compute_bitmask(), np.uint32)[: TABLE.num_words]
            assert allowed(matcher.mask(tokens[:length])) == allowed(bits)
            assert inner.consume_token(tokens[length])


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


def test_forced_tokens_spell_what_alone_is_allowed():
    matcher = GRAMMARS.matcher(STRUCTURED[0])
    assert text_of(matcher.forced([])) == '{"ab":'
    assert matcher.forced(matcher.forced([])) == []


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_each_forced_token_is_the_only_one_that_is_allowed(structured):
    chance, num_forced = random.Random(3), 0
    for _ in range(5):
        tokens = _written(structured, chance)
        matcher, fresh = GRAMMARS.matcher(structured), GRAMMARS.matcher(structured)
        for length in range(len(tokens)):
            forced = matcher.forced(tokens[:length])
            num_forced += len(forced)
            for place, token in enumerate(forced):
                assert allowed(fresh.mask(tokens[:length], forced[:place])) == [token]
    assert num_forced or structured.kind in ("json_object", "grammar")


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


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_as_much_of_a_draft_is_allowed_as_the_masks_have_whatever_was_asked_before(structured):
    """A draft that is asked about again, in part, changed, or behind more committed tokens."""
    chance = random.Random(7)
    for _ in range(6):
        tokens, matcher, num_committed = _written(structured, chance), GRAMMARS.matcher(structured), 0
        for _ in range(6):
            num_committed = chance.randint(num_committed, len(tokens))
            committed, draft = tokens[:num_committed], tokens[num_committed : num_committed + 5]
            if draft and chance.random() < 0.6:
                draft[chance.randrange(len(draft))] = chance.randrange(len(TOKENS))
            draft = _spelled_out(draft) if chance.random() < 0.3 else draft
            draft += [chance.randrange(len(TOKENS))] * chance.randint(0, 1)
            for asked in (draft, draft[: chance.randint(0, len(draft))], draft):
                matcher.forced(committed)
                if chance.random() < 0.5:
                    matcher.mask(committed, asked)  # reads it, also where the same text is spelled by other tokens
                assert matcher.num_allowed(committed, asked) == _num_in_masks(structured, committed, asked)


def _spelled_out(token_ids):
    """The same text in tokens of one byte each, which a mask does not have where a longer token is forced."""
    return [TOKENS.index(bytes([byte])) for token_id in token_ids if token_id != END for byte in TOKENS[token_id]]


def _num_in_masks(structured, committed, draft):
    """How many of the tokens the masks of a fresh matcher have."""
    fresh = GRAMMARS.matcher(structured)
    places = range(len(draft))
    has = [draft[place] in (allowed(fresh.mask(committed, draft[:place])) or ()) for place in places]
    return [*has, False].index(False)


def test_tokens_behind_an_end_token_are_not_allowed():
    matcher = GRAMMARS.matcher(Structured(choice=["ab", "abc"]))
    ab, c = TOKENS.index(b"ab"), TOKENS.index(b"c")
    assert matcher.allows([], [ab, END])
    assert not matcher.allows([], [ab, END, c])
    assert not matcher.allows([], [ab, END, END])
    assert matcher.allows([ab], [c, END])


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
