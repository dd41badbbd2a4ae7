"""Masks of answers with calls, forms or thoughts are those of fresh matchers, whatever was drafted."""

from __future__ import annotations

from typing import Any

import pytest

from decoding.grammar.grammars import Grammars
from decoding.vocabulary.grammars import grammars_of
from tests.actors.engine.test_answer_grammar import FAMILIES, Asked
from tests.decoding.grammar.walks import Walker, walk
from tests.endpoint.in_process import BUNDLED

FORCED = {"tool_choice": "required"}
WAYS: dict[str, dict[str, Any]] = {
    "calls or form": {},
    "calls alone": {"fields": FORCED},
    "calls behind a thought": {"fields": FORCED, "thinks": True},
    "calls or form behind a thought": {"thinks": True},
    "a form behind a thought": {"fields": {"tools": None}, "thinks": True},
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return grammars_of(str(BUNDLED / "target"), 3072, frozenset({0, 4}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_masks_of_an_answer_do_not_depend_on_what_was_drafted(grammars: Grammars, family: str, way: str) -> None:
    asked = Asked(family, **WAYS[way])
    codec = asked.codec
    (sequence,) = asked.row(codec).sequences
    assert sequence.params.structured is not None
    walker = Walker(grammars, sequence.params.structured)
    assert sum(walk(walker, seed, num_rounds=8) for seed in range(2)) > 2
