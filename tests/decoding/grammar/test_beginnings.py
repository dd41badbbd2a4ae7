"""What an output of a form may begin with is found by one compilation, and a form without an answer is an error."""

import pytest

from decoding.grammar import definition
from decoding.grammar.definition import Compiled
from decoding.grammar.grammars import first_possible
from decoding.grammar.structured import Structured
from tests.decoding.grammar.tiny_grammars import RECORD

HEADS = [f'{{"name":"{name}","parameters":' for name in ("clock", "weather", "weathers")]
OF_WEATHER = {"properties": {"name": {"enum": ["weather"]}, "parameters": {"type": "object"}}}


@pytest.mark.parametrize("is_tight", [True, False])
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (RECORD, None),
        (OF_WEATHER, HEADS[1]),
        ({"type": "object"}, HEADS[0]),
        ({"const": {"name": "weathers", "parameters": []}}, HEADS[2]),
        ({"type": "string"}, None),
        ({"properties": {"name": {"enum": ["weather"]}}, "additionalProperties": False}, None),
    ],
)
def test_the_first_text_that_the_form_may_begin_with_is_found(schema, expected, is_tight):
    assert first_possible(Structured(json_schema=schema, disable_any_whitespace=is_tight), HEADS) == expected


def test_texts_without_a_common_beginning_are_asked_about_each():
    structured = Structured(choice=["yes", "né"])
    assert first_possible(structured, ["no", "{", "né", "ye"]) == "né"
    assert first_possible(structured, ["no", "{"]) is None
    assert first_possible(structured, ["yes"]) == "yes"


def test_a_form_is_compiled_once_for_all_texts(monkeypatch):
    made = []
    compiled = Compiled.of
    monkeypatch.setattr(Compiled, "of", lambda *args: made.append(args) or compiled(*args))
    names = [f'{{"name":"w{number}"' for number in range(128)]
    assert first_possible(Structured(json_schema=OF_WEATHER), names) is None
    assert len(made) == 1


@pytest.mark.parametrize("structured", [{"regex": "("}, {"regex": "(a{1000}){1000}"}, {"json_schema": {"type": "no"}}])
def test_a_form_that_cannot_be_compiled_is_an_error(structured):
    with pytest.raises(ValueError, match=f"^sampling.structured.{next(iter(structured))} cannot be compiled: "):
        first_possible(Structured(**structured), HEADS)


def test_the_place_of_a_mistake_in_a_large_schema_is_looked_for_within_a_limit(monkeypatch):
    asked = []
    message = definition._message
    monkeypatch.setattr(definition, "_message", lambda text: asked.append(len(text)) or message(text))
    shared = {"large": {"enum": ["a" * 100_000]}}
    properties = {f"p{number}": {"type": "integer"} for number in range(500)}
    schema = {"$defs": shared, "properties": {**properties, "wrong": {"type": "nope"}}}
    problem = definition.problem_with(Structured(json_schema=schema))
    assert problem == "sampling.structured.json_schema cannot be compiled: Invalid type: nope"
    assert 10 < len(asked) < 40
    assert sum(asked[1:]) <= 2 * 2**20
    near = {"$defs": shared, "properties": {"wrong": {"type": "nope"}}}
    assert definition.problem_with(Structured(json_schema=near)) == (
        "sampling.structured.json_schema cannot be compiled at /properties/wrong: Invalid type: nope"
    )
