"""What a grammar allows is a pure function of the tokens, whatever llguidance keeps, and whatever other rows ask it."""

import random
from itertools import permutations, product

import numpy as np
import pytest
from llguidance import LLMatcher
from transformers import AutoTokenizer

from decoding.grammar.definition import definition_of
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from tests.decoding.grammar.tiny_grammars import SHORT, STRUCTURED, grammars
from tests.decoding.grammar.walks import CHECKS, Walker, check_rejected, walk

BYTES = Grammars(lambda: TokenTable.of_tokens([*(bytes([byte]) for byte in range(256)), b""], frozenset({256})))
MARKS = [bytes(each) for size in (1, 2) for each in product(b'{}[]()<>":,; acd', repeat=size)]
MARKED = Grammars(lambda: TokenTable.of_tokens([*MARKS, b""], frozenset({len(MARKS)})))
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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("structured", FORMS, ids=lambda each: each.kind)
def test_masks_of_a_row_are_those_of_fresh_matchers_whatever_was_drafted(structured, seed):
    assert walk(Walker(MARKED, structured), seed) > 0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("structured", FORMS, ids=lambda each: each.kind)
def test_a_rejected_token_leaves_nothing_behind_the_one_in_its_place(structured, check):
    walker, chance, num_pairs = Walker(MARKED, structured), random.Random(1), 0
    tokens = walker.possible([], [MARKS.index(bytes([byte])) for byte in b'{"a":'])
    for _ in range(5):
        num_pairs += check_rejected(walker, check, tokens, chance)
        tokens += walker.continued(tokens, 1, chance)
    assert num_pairs


@pytest.mark.parametrize("structured", STRUCTURED, ids=lambda each: each.kind)
def test_the_same_with_tokens_of_many_bytes(structured):
    assert sum(walk(Walker(grammars(), structured), seed) for seed in range(8)) > 8


@pytest.mark.parametrize("structured", FORMS, ids=lambda each: each.kind)
def test_the_same_with_a_tokenizer_that_forces_tokens(structured, bundled):
    assert sum(walk(Walker(bundled, structured), seed) for seed in range(4)) > 4
