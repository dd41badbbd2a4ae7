"""Structured text is a function of target, prompt, parameters, grammar and noise key, and is what was asked for."""

from collections.abc import Callable
from functools import partial

import pytest

from decoding import SamplingParams, Sequence
from decoding.drafters.lookups.ngram import _NGramIndex
from decoding.gpu.available import is_interpreted
from decoding.grammar.matcher import Matcher, Place, masks_at_once
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import Mask
from decoding.sampling.judging import MasksBeside
from decoding.sampling.rows import Rows
from tests.decoding.grammar.tiny_grammars import END, RECORD, fulfils, grammars, text_of
from tests.decoding.tiny import EVERY_DRAFTER, engine_by, outputs, run
from tests.worlds.rows import forms
from tests.worlds.text_world import TextWorld

GRAMMARS = grammars()
MAKERS = [d for d in EVERY_DRAFTER if d != "model"] + ["good_draft", "perfect_draft"]


@pytest.fixture(scope="module")
def world(ended) -> TextWorld:
    found = TextWorld(ended, forms, GRAMMARS)
    assert is_interpreted() or sum(text[-1] == END for text in found.alone) > 4, "some texts end"
    return found


@pytest.fixture(params=MAKERS)
def make_engine(request, ended):
    return partial(engine_by, ended, request.param, grammars=GRAMMARS)


def test_tokens_that_are_checked_after_they_were_picked_are_those_that_masks_would_have_left(world, monkeypatch):
    assert world.alone, "before anything is patched"

    def masked_first(rows: Rows) -> frozenset[int]:
        return frozenset(row for row, sequence in enumerate(rows.sequences) if sequence.matcher is not None)

    monkeypatch.setattr(MasksBeside, "begin", lambda *_: None)
    monkeypatch.setattr(Rows, "masked_first", property(masked_first))
    world.check(world.engine("good_draft", num_slots=4))


def test_whether_a_row_fails_whose_mask_cannot_be_computed_does_not_depend_on_where_masks_are_computed(
    ended, monkeypatch
):
    strays: list[int] = []
    note_stray, compute, beside, at_once = Matcher.note_stray, Matcher._compute, MasksBeside.begin, masks_at_once

    def written(row: int, begin: Callable[..., None]) -> tuple[list[int], str | None]:
        monkeypatch.setattr(MasksBeside, "begin", begin)
        (sequence,) = run(engine_by(ended, "none", num_slots=1, grammars=GRAMMARS), [forms()[row]])
        return sequence.output_token_ids, sequence.error

    def note(self: Matcher, num_committed: int) -> None:
        strays.append(num_committed)
        note_stray(self, num_committed)

    monkeypatch.setattr(Matcher, "note_stray", note)
    num_tried = 0
    for row in range(len(forms())):
        strays.clear()
        written(row, lambda *_: None)
        for broken in sorted({place + behind for place in strays[:2] for behind in (1, 2)}):

            def compute_some(self: Matcher, num_tokens: int, broken: int = broken) -> Mask:
                return self._nothing("too complex") if num_tokens == broken else compute(self, num_tokens)

            def compute_some_at_once(places: list[Place], num_positions: int, broken: int = broken) -> object:
                if any(len(place.committed) <= broken <= len(place.committed) + len(place.drafted) for place in places):
                    return None
                return at_once(places, num_positions)

            monkeypatch.setattr(Matcher, "_compute", compute_some)
            monkeypatch.setattr("decoding.sampling.judging.masks_at_once", compute_some_at_once)
            assert written(row, beside) == written(row, lambda *_: None)
            num_tried += 1
            monkeypatch.setattr(Matcher, "_compute", compute)
    assert num_tried > 4 or is_interpreted()


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_outputs_that_end_are_what_was_asked_for_and_others_are_cut_at_their_length(make_engine, verification):
    engine = make_engine(verification=verification, num_slots=4)
    for sequence in run(engine, forms()):
        if sequence.params.structured is None:
            continue
        assert sequence.error is None
        text, matcher = text_of(sequence.output_token_ids), GRAMMARS.matcher(sequence.params.structured)
        if sequence.finish_reason == "stop":
            assert sequence.output_token_ids[-1] == END
            assert fulfils(text, sequence.params.structured)
        else:
            assert sequence.finish_reason == "length"
            assert len(sequence.output_token_ids) == sequence.params.max_tokens
            assert matcher.mask(sequence.output_token_ids) is not None, "it is the beginning of such an output"
            assert matcher.dead_end is None


def test_a_grammar_without_a_tokenizer_is_refused(ended):
    (sequence,) = run(engine_by(ended, "none"), forms()[:1])
    assert sequence.finish_reason == "error"
    assert "no tokenizer" in sequence.error


def test_an_output_that_the_vocabulary_cannot_spell_fails_its_row_and_says_why(ended):
    good, bad = forms()[:2]
    bad.params = SamplingParams(structured=Structured(choice=["xyz"]), temperature=0)
    run(engine_by(ended, "good_draft", grammars=GRAMMARS), [good, bad])
    assert good.error is None
    assert bad.error.startswith("sampling.structured: the grammar cannot be followed")


def test_forced_tokens_are_drafted_without_a_forward_and_all_accepted(ended, monkeypatch):
    """Also by a drafter that finds nothing, and not where nothing is to be drafted."""
    structured = Structured(json_schema=RECORD, disable_any_whitespace=True)
    params = SamplingParams(structured=structured, max_tokens=30, temperature=0.8)

    prompts = [row.prompt_token_ids for row in forms()]

    def written(drafter: str, verification: str = "coupled") -> list[Sequence]:
        engine = engine_by(ended, drafter, grammars=GRAMMARS, verification=verification)
        return run(engine, [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(prompts)])

    plain = written("none")
    assert all(sequence.num_draft_tokens == 0 for sequence in plain)
    monkeypatch.setattr(_NGramIndex, "lookup", lambda *_: ([], 0))
    forced = written("ngram")
    assert outputs(forced) == outputs(plain)
    for rows in (forced, written("ngram", "rejection")):
        assert all(s.num_draft_tokens == s.num_accepted_tokens > 0 for s in rows)
        assert sum(s.num_rounds for s in rows) < 0.8 * sum(len(s.output_token_ids) for s in rows)
