"""Outputs that have a form, with vLLM: greedy texts are those of Dray's engine, and every whole text has its form."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from vllm.v1.structured_output.backend_guidance import GuidanceGrammar

from actors.engine.translation import EncodedRow, decode_row
from decoding import Engine, SamplingParams, Sequence
from decoding.grammar.structured import Structured
from decoding.vocabulary.grammars import grammars_of
from pipeline.run.check import contradictions
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec
from tests.pipeline.made_up import input_row
from tests.vllm.conftest import PAIR
from tests.vllm.test_engine import PROMPTS, sequences_of, written

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"json_schema": RECORD},
    "schema without white space": {"json_schema": RECORD, "disable_any_whitespace": True},
    "schema with options of its own": {"json_schema": {**RECORD, "x-guidance": {"whitespace_flexible": False}}},
    "object": {"json_object": True},
    "regex": {"regex": "[a-c]{2,5}(-[0-9]{1,3})?"},
    "choice": {"choice": ["yes", "no", 'a "quoted" one\n', "yes, and no"]},
    "grammar": {"grammar": 'start: item ("," " " item){1,3}\nitem: /[a-z]{1,6}/ | "start ::= "'},
    "grammar with a directive": {"grammar": '%llguidance {}\nstart: "a" /[0-9]{1,5}/'},
    "grammar whose first rule is lazy": {"grammar": "start[lazy]: /[a-z]{1,9}!/"},
    "grammar with a schema": {"grammar": f'start: "so: " form\nform: %json {json.dumps(RECORD)}'},
}


def fulfils(text: str, form: dict[str, Any]) -> bool:
    """Tell whether a whole text has the form."""
    if "grammar" in form:
        if "%json" in form["grammar"]:
            return text.startswith("so: ") and fulfils(text[4:], FORMS["schema"])
        if "lazy" in form["grammar"]:
            return re.fullmatch("[a-z]{1,9}!", text) is not None
        pattern = (
            "a[0-9]{1,5}"
            if "%llguidance" in form["grammar"]
            else "([a-z]{1,6}|start ::= )(, ([a-z]{1,6}|start ::= )){1,3}"
        )
        return re.fullmatch(pattern, text) is not None
    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    if "choice" in form:
        return text in form["choice"]
    jsonschema.validate(json.loads(text), form.get("json_schema", {"type": "object"}))
    return True


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_greedy_texts_of_a_form_are_drays(engine: Any, plain: Engine, codec: TextCodec, form: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, structured=form)
    rows = written(engine, [*sequences_of(codec, params), *sequences_of(codec, replace(params, structured=None), 1)])
    expected = written(plain, [*sequences_of(codec, params), *sequences_of(codec, replace(params, structured=None), 1)])
    for ours, own in zip(rows, expected, strict=True):
        assert (ours.error, own.error) == (None, None)
        assert codec.decode(ours.output_token_ids) == codec.decode(own.output_token_ids)
        assert (ours.output_token_ids, ours.finish_reason) == (own.output_token_ids, own.finish_reason)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_sampled_texts_that_end_have_the_form_and_the_others_are_cut_at_their_length(
    engine: Any, plain: Engine, codec: TextCodec, form: dict[str, Any]
) -> None:
    reasons = set()
    grammars = grammars_of(str(PAIR / "target"), plain.vocab_size, plain.target.eos_token_ids)
    for max_tokens in (5, 80):
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, structured=form)
        for row in written(engine, sequences_of(codec, params)):
            text = codec.decode(row.output_token_ids)
            assert row.error is None
            reasons.add(row.finish_reason)
            if row.finish_reason == "stop":
                assert fulfils(text, form)
            else:
                assert (row.finish_reason, len(row.output_token_ids)) == ("length", max_tokens)
                matcher = grammars.matcher(Structured.of(form))
                assert matcher.mask(row.output_token_ids) is not None, "it is the beginning of such a text"
                assert matcher.dead_end is None
            (counted,) = decode_row(EncodedRow(input_row(), ChatPrompt("", []), (row,)), codec)
            assert list(contradictions(counted)) == []
            assert (row.num_draft_tokens > 0) <= engine.has_drafts
    assert "stop" in reasons


def test_white_space_of_json_is_a_rows_choice(engine: Any, codec: TextCodec) -> None:
    """How long a run of it may be is llguidance's, whose releases before 1.9 let the pattern match again and again."""
    for disables in (True, False):
        form = {"json_schema": RECORD, "disable_any_whitespace": disables}
        params = SamplingParams(temperature=0.0, max_tokens=80, structured=form)
        texts = [
            re.sub(r'"[^"]*"', '""', codec.decode(r.output_token_ids))
            for r in written(engine, sequences_of(codec, params))
        ]
        assert any(re.search(r"\s", text) for text in texts) == (not disables)


def test_an_end_token_before_the_form_is_whole_makes_an_error_row(
    engine: Any, codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's mask allows it where the grammar has met a limit of the library."""
    fill = GuidanceGrammar.fill_bitmask

    def ending(grammar: GuidanceGrammar, bitmask: Any, index: int) -> None:
        fill(grammar, bitmask, index)
        bitmask[index] = 0
        end = grammar.ll_tokenizer.eos_token
        bitmask[index][end // 32] = 1 << end % 32

    monkeypatch.setattr(GuidanceGrammar, "fill_bitmask", ending)
    params = SamplingParams(temperature=0.0, max_tokens=20, structured={"regex": "[a-z]+"})
    good, bad = written(engine, [*sequences_of(codec, GREEDY, 1), *sequences_of(codec, params, 1)])
    assert good.error is None
    assert "vLLM ended" in str(bad.error)


GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"json_schema": _nested(70)}, "vLLM does not take this sampling.structured.json_schema: .* nested too deeply"),
        ({"regex": "a\x00b"}, "vLLM does not take this sampling.structured.regex: .* NUL character"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "json_schema"),
        ({"grammar": "start: missing"}, "grammar"),
        ({"regex": "(("}, "regex"),
    ],
)
def test_a_form_that_vllm_does_not_take_is_refused_by_name_and_dray_takes_what_is_vllms_own_limit(
    engine: Any, plain: Engine, codec: TextCodec, form: dict[str, Any], said: str
) -> None:
    (sequence,) = sequences_of(codec, replace(GREEDY, structured=form), 1)
    assert re.search(said, str(engine.problem_with(sequence)))
    assert ("vLLM" in said) == (plain.problem_with(sequence) is None)
    good, bad = written(engine, [*sequences_of(codec, GREEDY, 1), sequence])
    assert (good.error, bad.finish_reason) == (None, "error")


def test_rows_with_a_form_wait_can_be_dropped_and_leave_others_as_they_were(engine: Any, codec: TextCodec) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, structured=FORMS["schema"])
    alone = written(engine, sequences_of(codec, GREEDY, 1))[0].output_token_ids
    rows: list[Sequence] = [*sequences_of(codec, params, len(PROMPTS)), *sequences_of(codec, GREEDY, 1)]
    engine.submit(rows)
    engine.step()
    engine.drop(rows[:2], "not wanted")
    while engine.has_work:
        engine.step()
    assert [row.error for row in rows] == ["not wanted", "not wanted", *[None] * (len(rows) - 2)]
    assert rows[-1].output_token_ids == alone
