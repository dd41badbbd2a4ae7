"""A form that cannot be followed is refused in one line, and one that is only odd costs its neighbours nothing."""

import pytest

from decoding import SamplingParams, Sequence
from decoding.grammar.definition import problem_with
from decoding.grammar.structured import Structured
from tests.decoding.grammar.tiny_grammars import grammars, with_end
from tests.decoding.tiny import engine_by, outputs, run


def _deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED = {
    "a schema of 400 levels": ({"json_schema": _deep(400)}, "recursion limit exceeded"),
    "text of 5,000 levels": ({"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000}, "is not JSON"),
    "a reference to nothing": ({"json_schema": {"$ref": "#/$defs/a"}}, "does not exist"),
    "a reference to a page": ({"json_schema": {"$ref": "http://a.test/s.json"}}, "not present"),
    "an empty enum": ({"json_schema": {"enum": []}}, "anyOf is empty"),
    "no alternative": ({"json_schema": {"anyOf": []}}, "anyOf is empty"),
    "no type": ({"json_schema": {"type": []}}, "anyOf is empty"),
    "a type that is null": ({"json_schema": {"type": None}}, "type must be"),
    "a property that nothing fulfils": (
        {"json_schema": {"type": "object", "properties": {"a": False}, "required": ["a"]}},
        "'a' is unsatisfiable",
    ),
    "a minimum above the maximum": ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 4}}, "greater than"),
    "a least length above the greatest": (
        {"json_schema": {"type": "string", "minLength": 5, "maxLength": 4}},
        "greater than",
    ),
    "more items than may be": ({"json_schema": {"type": "array", "minItems": 5, "maxItems": 4}}, "greater than"),
    "a negative length": ({"json_schema": {"type": "string", "minLength": -1}}, "minLength"),
    "multiples of zero": ({"json_schema": {"type": "integer", "multipleOf": 0}}, "multiple of"),
    "a number beyond float": ({"json_schema": '{"type": "number", "minimum": 1e999}'}, "JSON can hold"),
    "a number of 400 digits": ({"json_schema": {"type": "integer", "minimum": 10**400}}, "out of range"),
    "properties that are a list": ({"json_schema": {"properties": []}}, "must be an object"),
    "required that is a text": ({"json_schema": {"required": "a"}}, "required"),
    "a condition": ({"json_schema": {"if": {}, "then": {}}}, "Unimplemented keys"),
    "a pattern that looks ahead": ({"json_schema": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
    "a pattern that refers back": ({"json_schema": {"type": "string", "pattern": "(a)\\1"}}, "backreferences"),
    "a pattern with half a character": ({"json_schema": {"type": "string", "pattern": "\\ud800"}}, "scalar value"),
    "a constant of half a character": ({"json_schema": '{"const": "\\ud800"}'}, "UTF-8"),
    "a choice of half a character": ({"choice": ["\ud800"]}, "UTF-8"),
    "an expression of half a character": ({"regex": "\ud800"}, "UTF-8"),
    "an escape beyond Unicode": ({"regex": "\\u{110000}"}, "cannot be compiled"),
    "a grammar without a start": ({"grammar": 'a: "b"'}, "start"),
    "a grammar of half a character": ({"grammar": 'start: "\ud800"'}, "UTF-8"),
    "a schema of 9 million characters": ({"json_schema": {"enum": ["a" * 1000] * 9000}}, "at most 1048576"),
}
TOO_COMPLEX = {
    "a thousand times a thousand letters": {"regex": "(a{1000}){1000}"},
    "a hundred million letters": {"regex": "(((a{100}){100}){100}){100}"},
    "a billion letters": {"regex": "a{1000000000}"},
}
TOO_LARGE = {
    "3,000 optional properties": {
        "json_schema": {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(3000)}}
    },
    "30,000 alternatives": {"grammar": "start: " + " | ".join(f'"x{number}"' for number in range(30_000))},
}
DEAD_ENDS = {
    "a reference to itself": {"json_schema": {"$ref": "#"}},
    "two references in a circle": {
        "json_schema": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    },
    "a part that is its whole": {
        "json_schema": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}
    },
    "a rule that never ends": {"grammar": "start: start"},
    "letters that no token has": {"choice": ["\0"]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_that_cannot_be_compiled_is_refused_in_one_short_line(name):
    value, said = REFUSED[name]
    try:
        problem = problem_with(Structured(**value))
    except ValueError as error:
        problem = str(error)
    assert problem is not None
    assert problem.startswith("sampling.structured.")
    assert said in problem
    assert "\n" not in problem
    assert len(problem) < 600


@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_a_form_whose_lexer_is_too_large_is_refused_before_a_row_runs_and_read_once(name):
    of_target = grammars()
    structured = Structured(**TOO_COMPLEX[name])
    problem = of_target.problem_with(structured)
    assert problem is not None
    assert problem.startswith("sampling.structured.regex cannot be compiled: lexer error")
    assert of_target.problem_with(structured) == problem
    assert of_target.num_compiled == 1


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_grammar_of_too_many_symbols_is_refused_in_one_short_line_and_never_compiled(name):
    of_target = grammars()
    problem = of_target.problem_with(Structured(**TOO_LARGE[name]))
    assert "grammar size (number of symbols) too big" in problem
    assert len(problem) < 600
    assert of_target.num_compiled == 0


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_a_form_that_nothing_fulfils_fails_its_row_and_says_so_beside_an_undisturbed_one(models, name):
    ended = type(models)(**{**vars(models), "target": with_end(models.target)})
    free = Sequence.create([3, 5], SamplingParams(max_tokens=8, temperature=0.8), row=1)
    (alone,) = outputs(run(engine_by(ended, "none"), [free]))
    again = Sequence.create([3, 5], SamplingParams(max_tokens=8, temperature=0.8), row=1)
    bad = Sequence.create([3, 5], SamplingParams(max_tokens=8, structured=DEAD_ENDS[name]), row=2)
    run(engine_by(ended, "good_draft", grammars=grammars()), [bad, again])
    assert bad.finish_reason == "error"
    assert bad.error.startswith("sampling.structured")
    assert again.output_token_ids == alone


def test_one_of_twenty_thousand_texts_can_be_chosen(models):
    """Alternatives of a rule were too many, which was known after a minute."""
    ended = type(models)(**{**vars(models), "target": with_end(models.target)})
    texts = [f"a{number}" for number in range(20_000)]
    row = Sequence.create([3, 5], SamplingParams(max_tokens=12, structured={"choice": texts}), row=2)
    run(engine_by(ended, "good_draft", grammars=grammars()), [row])
    assert row.error is None
    assert row.finish_reason == "stop"
