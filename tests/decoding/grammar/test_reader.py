"""What a grammar allows is a pure function of the tokens, whatever llguidance keeps, and whatever other rows ask it."""

import random
from functools import partial
from itertools import permutations, product

import llguidance
import numpy as np
import pytest
from llguidance import LLMatcher
from transformers import AutoTokenizer

from decoding.grammar.definition import definition_of
from decoding.grammar.grammars import Grammars
from decoding.grammar.matcher import Matcher, Place, masks_at_once
from decoding.grammar.reader import Reader
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from tests.decoding.grammar.tiny_grammars import SHORT, STRUCTURED, grammars, table_of
from tests.decoding.grammar.walks import CHECKS, Walker, check_allowed, check_each, check_forced, walk

BYTES = Grammars(lambda: table_of([*(bytes([byte]) for byte in range(256)), b""], frozenset({256})))
MARKS = [bytes(each) for size in (1, 2) for each in product(b'{}[]()<>":,; acd', repeat=size)]
MARKED = Grammars(lambda: table_of([*MARKS, b""], frozenset({len(MARKS)})))
BRACKETS = Structured(grammar='start: "[" W "]" | "{" W "}"\nW: /[a-z]+/')
FORMS = [
    BRACKETS,
    Structured(json_object=True),
    Structured(json_object=True, disable_any_whitespace=True),
    Structured(
        json_schema={"anyOf": [SHORT, {"type": "array", "items": {"type": ["string", "object"]}}, {"type": "object"}]}
    ),
    Structured(json_schema={"type": "object", "additionalProperties": {"type": ["string", "array", "object"]}}),
    Structured(grammar='start: pair+\npair: "(" W ("," W)* ")" | "[" W pair? "]" | W ";"\nW: /[a-z]+|[0-9]+/'),
    Structured(grammar='start: "<" text | "{" other\ntext[suffix=">"]: /.*/\nother[stop="}", max_tokens=9]: /.*/'),
    Structured(regex=r"(\[[a-z]+\]|\{[a-z]+\})*"),
    Structured(choice=["[ac]", "{ac}", "[aca]", "{acd}", "a"]),
]


@pytest.fixture(scope="module")
def bundled() -> Grammars:
    tokenizer = AutoTokenizer.from_pretrained("examples/tiny_pair/target")
    return Grammars(lambda: TokenTable.of_tokenizer(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id})))


@pytest.mark.parametrize("asked", permutations([b"[a", b"{a", b"{", b""], 3), ids=str)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("num_committed", [0, 1, 2])
def test_a_bracket_that_was_drafted_does_not_close_another_one(asked, check, num_committed):
    walker = Walker(BYTES, BRACKETS)
    matcher = walker.matcher()
    for text in asked[:-1]:
        check(walker, matcher, [], list(text))
    last = list(asked[-1])
    check(walker, matcher, last[:num_committed], last[num_committed:])


def test_llguidance_keeps_a_mask_behind_tokens_that_it_took_back():
    """If this fails, the version's rollback is right, and docs/structured.md must say from which version on."""
    table = BYTES._tokens()
    matcher = LLMatcher(table.tokenizer, definition_of(BRACKETS), log_level=0)
    walker, masks = Walker(BYTES, BRACKETS), []
    for text in (b"[a", b"{a"):
        assert matcher.try_consume_tokens(list(text)) == 2
        masks.append(walker.ids(np.frombuffer(matcher.compute_bitmask(), np.uint32)))
        matcher.rollback(2)
    assert masks == [walker.allowed(b"[a")] * 2
    assert walker.allowed(b"[a") != walker.allowed(b"{a")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("structured", FORMS, ids=lambda each: each.kind)
def test_masks_of_a_row_are_those_of_fresh_matchers_whatever_was_drafted(structured, seed):
    assert walk(Walker(MARKED, structured), seed) > 0


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_the_same_with_tokens_of_many_bytes(structured):
    assert sum(walk(Walker(grammars(), structured), seed) for seed in range(3)) > 8


@pytest.mark.parametrize("structured", FORMS, ids=lambda each: each.kind)
def test_the_same_with_a_tokenizer_that_forces_tokens(structured, bundled):
    assert sum(walk(Walker(bundled, structured), seed) for seed in range(4)) > 4


WAYS = Structured(regex=r"(.*a.{4}c.*|.*c.{5}d.*|.*d.{6}a.*|.*\[.{5}\].*)>")
FREE = Walker(MARKED, WAYS)
NUM_STATES = 100


@pytest.fixture
def narrow(monkeypatch) -> Grammars:
    """Grammars whose lexers have room for some tokens of `WAYS`, and not for those of many rows."""
    FREE.allowed([])  # compiled without a limit
    monkeypatch.setattr(llguidance, "LLParserLimits", partial(llguidance.LLParserLimits, max_lexer_states=NUM_STATES))
    return Grammars(MARKED._tokens)


def _check_round(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Ask for masks as a round does: one by one where there are none at once."""
    places = [[*committed, *drafted[:place]] for place in range(1 + len(drafted))]
    packed = masks_at_once([Place(matcher, committed, drafted)], len(places))
    if packed is None:
        check_each(walker, matcher, committed, drafted)
        return
    for mask, tokens in zip(packed[0], places, strict=True):
        if walker.allowed(tokens) is not None:
            assert walker.ids(mask) == walker.allowed(tokens)


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_wear_a_lexer_out_together_are_held_to_the_same_masks(narrow, seed):
    chance = random.Random(seed)
    matchers = [narrow.matcher(WAYS) for _ in range(16)]
    texts: list[list[int]] = [[] for _ in matchers]
    for _ in range(5):
        for matcher, text in zip(matchers, texts, strict=True):
            draft = FREE.continued(text, 2, chance)
            if chance.random() < 0.3:
                draft[chance.randrange(2)] = MARKS.index(b"[")
            for check in chance.sample([_check_round, check_each, check_allowed, check_forced], 2):
                check(FREE, matcher, text, draft)
            text += FREE.continued(text, 2, chance)
    assert narrow._compiled[WAYS.key].is_worn


def _ends(grammars: list[Grammars], walker: Walker, texts: list[list[int]], num_drafted: int) -> list[tuple[int, str]]:
    """Places where rows that are read in turns come to their ends, and why. Masks before them are right."""
    found: dict[int, tuple[int, str]] = {}
    matchers = [each.matcher(walker.structured) for each in grammars]
    for length, (row, matcher) in product(range(len(texts[0])), enumerate(matchers)):
        text, draft = texts[row][:length], texts[row][length : length + num_drafted]
        if row not in found:
            matcher.num_allowed(text, draft)
            masks_at_once([Place(matcher, text, draft)], 1 + len(draft))
            mask = matcher.mask(text)
            if matcher.dead_end is not None:
                found[row] = length, matcher.dead_end
            else:
                assert mask is not None
                assert walker.ids(mask) == walker.allowed(text)
    return [found.get(row, (len(texts[0]), "")) for row in range(len(texts))]


NESTED = Structured(grammar='start: a+ ">"\na: a b | b | b a b\nb: W | "(" a ")" | "[" a? "]"\nW: /[a-z]+/')


@pytest.mark.parametrize(
    ("structured", "limit", "value", "error"),
    [
        (WAYS, "max_lexer_states", NUM_STATES, "too many states"),
        (NESTED, "step_max_items", 200, "Too many items"),
        (NESTED, "max_items_in_row", 10, "max is 10"),
        *((WAYS, "step_lexer_fuel", fuel, "too many expressions") for fuel in (500, 600, 700)),
    ],
)
def test_a_limit_of_llguidance_ends_no_row_earlier_beside_others_or_by_a_draft(
    monkeypatch, structured, limit, value, error
):
    """Nor later, but for the work of a step: what others did of it in their lexer a row is spared."""
    walker = Walker(MARKED, structured)
    texts = [walker.continued([], 60, random.Random(5 + row)) for row in range(6)]
    monkeypatch.setattr(llguidance, "LLParserLimits", partial(llguidance.LLParserLimits, **{limit: value}))
    alone = _ends([Grammars(MARKED._tokens) for _ in texts], walker, texts, 0)
    assert any(error in why for _, why in alone)
    shared, own = [Grammars(MARKED._tokens)] * 6, [Grammars(MARKED._tokens) for _ in texts]
    for each, num_drafted in product((shared, own), (0, 4)):
        found = _ends(each, walker, texts, num_drafted)
        if limit == "step_lexer_fuel":
            assert all(length >= least for (length, _), (least, _) in zip(found, alone, strict=True))
        else:
            assert found == alone


def test_a_refusal_by_a_lexer_that_others_wore_out_is_no_refusal(narrow):
    """What llguidance says then: no error, and no token."""
    found, text = narrow._of(WAYS), FREE.continued([], 3, random.Random(0))
    other = found.start.deep_copy()
    for token in FREE.continued([], 60, random.Random(1)):
        other.compute_bitmask()
        other.try_consume_tokens([token])
    late = found.start.deep_copy()
    assert (late.try_consume_tokens(text), late.is_error(), found.is_worn) == (0, False, True)
    reader = Reader(lambda alone: narrow._made(WAYS) if alone else found)
    assert reader.commit(text)
