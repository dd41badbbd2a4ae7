"""Rows of the bundled pair whose outputs have a form are those that the target writes alone, whatever drafts.

A tiny random model seldom writes text of which a library could keep a wrong mask; a trained one does.
"""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine.load import load_parts
from decoding.gpu.available import is_interpreted
from decoding.grammar.structured import Structured
from tests.decoding.tiny import check_counts, outputs, run
from tests.pairs_of_values import every_pair

PAIR = Path("examples/tiny_pair")
RECORD = {"type": "object", "properties": {"id": {"type": "integer"}, "likes": {"type": "array"}}, "required": ["id"]}
FORMS = [
    Structured(json_object=True),
    Structured(json_object=True, disable_any_whitespace=True),
    Structured(json_schema={"type": "object", "additionalProperties": {"type": ["string", "object", "integer"]}}),
    Structured(json_schema=RECORD),
    Structured(grammar='start: item+\nitem: "{" W (":" W)* "}" | " " W ":" W ";"\nW: /"[a-zA-Z ]*"/'),
    Structured(regex=r"\{(\"[a-z ]+\": \"?[A-Za-z0-9 ]+\"?,? ?)+\}"),
    Structured(choice=['{"order": "none"}', '{"id": 1, "name": "Ada"}', "no"]),
    None,
]
DRAFTERS = ["suffix", "ngram", "hybrid", "model", "eagle3"]
pytestmark = pytest.mark.skipif(is_interpreted(), reason="hundreds of tokens, in each of many settings")


def _options(drafter: str, length: int | str, num_slots: int) -> EngineOptions:
    adaptive = length == "adaptive"
    return EngineOptions(
        drafter=drafter,
        num_slots=num_slots,
        max_model_len=256,
        num_speculative_tokens=6 if adaptive else length,
        draft_length="adaptive" if adaptive else "fixed",
    )


@pytest.fixture(scope="module")
def target():
    return load_parts(str(PAIR / "target"), None, _options("none", 1, 1), "cpu", "float32").target


@pytest.fixture(scope="module")
def write(target):
    """What an engine writes, over the weights that are loaded already."""

    def written(drafter: str, length: int | str, num_slots: int, sequences: list[Sequence]) -> list[Sequence]:
        options = _options(drafter, length, num_slots)
        draft = {"hybrid": "draft", "model": "draft", "eagle3": "head"}.get(drafter)
        draft = None if draft is None else str(PAIR / draft)
        parts = load_parts(str(PAIR / "target"), draft, options, "cpu", "float32", target_model=target.share())
        return run(Engine.over(parts, options), sequences)

    return written


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return json_prompts(AutoTokenizer.from_pretrained(PAIR / "target"))


def json_prompts(tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """The bundled prompts for records in JSON."""
    rows = map(json.loads, Path("examples/prompts.jsonl").read_text().splitlines())
    return [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False)
        if "messages" in row
        else tokenizer.encode(row["prompt"])
        for row in rows
        if row["kind"] == "json"
    ]


def _sequences(prompts: list[list[int]]) -> list[Sequence]:
    """Sixteen rows of JSON objects, in which texts of one shape meet, and then every form with and without noise."""
    asked = [(FORMS[0], 0.8)] * 16 + [(form, temperature) for temperature in (0.8, 0.0) for form in FORMS]
    return [
        Sequence.create(
            prompts[row % len(prompts)],
            SamplingParams(structured=form, temperature=temperature, max_tokens=20),
            run_seed=1,
            row=row,
        )
        for row, (form, temperature) in enumerate(asked)
    ]


@pytest.fixture(scope="module")
def plain(write, prompts) -> list[list[int]]:
    sequences = write("none", 1, 16, _sequences(prompts))
    assert not any(sequence.error for sequence in sequences)
    return outputs(sequences)


@pytest.mark.parametrize(("drafter", "length", "num_slots"), every_pair(DRAFTERS, [4, 1, "adaptive"], [16, 1]))
def test_rows_with_forms_are_those_of_the_target_alone(write, plain, prompts, drafter, length, num_slots):
    sequences = write(drafter, length, num_slots, _sequences(prompts))
    assert [sequence.error for sequence in sequences] == [None] * len(sequences)
    assert outputs(sequences) == plain
    for sequence in sequences:
        check_counts(sequence)
