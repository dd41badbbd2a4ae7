"""What may be asked of an output, and what is said of a mistake."""

import pytest

from decoding import SamplingParams
from decoding.grammar.definition import problem_with
from decoding.grammar.structured import Structured

DEEP = {"properties": {"a": {"anyOf": [{"type": "string"}, {"items": {"type": "string", "format": "foo"}}]}}}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "exactly one of json_schema"),
        ({"regex": "a", "choice": ["b"]}, "got ['regex', 'choice']"),
        ({"regx": "a"}, "has no ['regx']"),
        ("a+", "must be an object"),
        ({"regex": ""}, "regex must be a text"),
        ({"regex": 5}, "regex must be a text"),
        ({"choice": []}, "choice must be a list"),
        ({"choice": "ab"}, "choice must be a list"),
        ({"choice": ["a", ""]}, "choice must be a list"),
        ({"json_object": False}, "json_object must be true"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": "[]"}, "json_schema must be an object"),
        ({"json_schema": {"const": float("nan")}}, "what JSON can hold"),
        ({"json_schema": {"const": object()}}, "what JSON can hold"),
        ({"grammar": "x" * (1 << 20)}, "at most 1048576 characters"),
        ({"regex": "a", "disable_any_whitespace": True}, "is for json_schema and json_object"),
        ({"json_object": True, "disable_any_whitespace": 1}, "must be true or false"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value, said):
    with pytest.raises(ValueError, match="structured") as raised:
        SamplingParams(structured=value)
    assert said in str(raised.value)


@pytest.mark.parametrize("other", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_forbids_the_end_token_is_refused_beside_a_grammar(other):
    with pytest.raises(ValueError, match=next(iter(other))):
        SamplingParams(structured={"regex": "a"}, **other)


def test_a_schema_may_be_json_text_and_a_struct_may_have_fields_that_are_null():
    text = SamplingParams(structured={"json_schema": '{"type": "null"}', "regex": None}).structured
    assert text == Structured(json_schema={"type": "null"})
    assert Structured.of(text.as_dict()) == text


def test_grammars_have_equal_keys_only_if_they_ask_for_the_same():
    one = {"properties": {"a": {}, "b": {}}}
    other = {"properties": {"b": {}, "a": {}}}  # the order is that of the output
    keys = [
        Structured(json_schema=schema, disable_any_whitespace=tight).key
        for schema in (one, other)
        for tight in (False, True)
    ]
    assert len(set(keys)) == 4
    assert Structured(json_schema=dict(one)).key == Structured(json_schema='{"properties": {"a": {}, "b": {}}}').key


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"json_schema": DEEP}, "at /properties/a/anyOf/1/items: Unknown format: foo"),
        ({"json_schema": {"$defs": {"a/b": {"type": "x"}}, "$ref": "#/$defs/a~1b"}}, "at /$defs/a~1b: Invalid type: x"),
        ({"json_schema": {"type": "x"}}, "json_schema cannot be compiled: Invalid type: x"),
        ({"json_schema": {"uniqueItems": True, "type": "array"}}, "Unimplemented keys"),
        ({"json_schema": {"not": {}}}, "Unimplemented keys"),
        ({"regex": "a(b"}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": 'start: "a" rest'}, 'unknown name: "rest"'),
        ({"grammar": 'begin: "a"'}, "start"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_named_with_its_place(value, said):
    problem = problem_with(Structured(**value))
    assert said in problem
    assert problem.startswith(f"sampling.structured.{next(iter(value))} cannot be compiled")
    assert "\n" not in problem


def test_a_grammar_that_can_be_compiled_has_no_problem():
    forms = [{"json_schema": {}}, {"json_object": True}, {"regex": "a*"}, {"choice": ["é", 'b\n"q\\']}]
    forms.append({"grammar": 'start: "a" start | "b"'})
    assert [problem_with(Structured(**form)) for form in forms] == [None] * len(forms)
