"""A form that cannot be followed is refused in one line, and one that is only odd costs its neighbours nothing."""

import tracemalloc

import pytest

from decoding import SamplingParams, Sequence
from decoding.grammar.definition import problem_with
from decoding.grammar.patterns import patterns_in
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
    "a thousand times a thousand letters": {"grammar": "start: /(a{1000}){1000}/"},
    "a hundred million letters": {"grammar": "start: /(((a{100}){100}){100}){100}/"},
    "a billion letters": {"grammar": "start: /a{1000000000}/"},
}


def _of_patterns(*patterns: str) -> dict[str, object]:
    """A schema of an object with a text of each pattern."""
    texts = {f"p{number}": {"type": "string", "pattern": pattern} for number, pattern in enumerate(patterns)}
    return {"type": "object", "properties": texts}


DATA = {"pattern": "^(a{1000}){1000}$"}
LARGE = {"type": "string", **DATA}
TOO_MUCH_TEXT = {
    "a thousand times a thousand letters": ({"regex": "(a{1000}){1000}"}, "write out 1000000 bytes"),
    "a hundred million letters": ({"regex": "(((a{100}){100}){100}){100}"}, "write out 100000000 bytes"),
    "a billion letters": ({"regex": "a{1000000000}"}, "write out 1000000000 bytes"),
    "letters behind some others": ({"regex": "[a-z]{4}(a{1000}){1000}"}, "write out 1000003 bytes"),
    "a pattern of them": (
        {"json_schema": _of_patterns("^[a-z]{4}(a{1000}){1000}$")},
        "at /properties/p0: lexer error: the repetitions write out 1000003 bytes",
    ),
    "letters in many ways behind others": ({"regex": "[a-z]{4}(b+){1000}"}, "lexer error: too many expressions"),
    "a pattern of letters in many ways": (
        {"json_schema": _of_patterns("^[a-z]{4}(b+){1000}$")},
        "at /properties/p0: lexer error: too many expressions",
    ),
    "twelve patterns that are small alone": (
        {"json_schema": _of_patterns(*(f"^[a-z]{{4}}a{{{900 + number}}}$" for number in range(12)))},
        "at /properties/p11: lexer error: the repetitions of this pattern and of those before it write out 10",
    ),
    "a pattern of 300 groups": (
        {"regex": "[xz]".join(f"(b{{{number}}}c?){{2}}" for number in range(30, 330))},
        "lexer error: the repetitions have too many groups that write out much",
    ),
    "the names of properties": ({"json_schema": {"patternProperties": {DATA["pattern"]: {}}}}, "/patternProperties"),
    "a property with the name of a keyword": (
        {"json_schema": {"type": "object", "properties": {"const": LARGE}}},
        "at /properties/const: lexer error",
    ),
    "a shared schema with the name of a keyword": (
        {"json_schema": {"$defs": {"default": LARGE}, "$ref": "#/$defs/default"}},
        "at /$defs/default: lexer error",
    ),
    "a schema among data that is referred to": (
        {"json_schema": {"$ref": "#/default/1", "default": [1, LARGE]}},
        "at /default/1: lexer error",
    ),
    "names of properties that are also a schema": (
        {
            "json_schema": {
                "$defs": {"u": {"$ref": "#/properties/a/properties"}},
                "properties": {"a": {"type": "object", "properties": {"const": LARGE}}},
            }
        },
        "at /properties/a/properties/const: lexer error",
    ),
    "a reference whose signs are written as numbers": (
        {"json_schema": {"$ref": "#/%64efault/1", "default": [1, LARGE]}},
        "at /default/1: lexer error",
    ),
    "a reference with the address of the schema": (
        {"json_schema": {"$id": "http://a/b", "$ref": "b#/default/1", "default": [1, LARGE]}},
        "at /default/1: lexer error",
    ),
    "one pattern without a choice again and again": (
        {"json_schema": _of_patterns(*["^a{9000}$"] * 2)},
        "at /properties/p1: lexer error: the repetitions of this pattern and of those before it write out 18",
    ),
    "a set in a set": ({"regex": "x([a[a]]{300}){300}"}, "lexer error"),
    "a set with a blank that means nothing": ({"regex": "(?x)x([a ]{300}){300}"}, "lexer error"),
    "a class of one character": ({"regex": r"x(\p{Zl}{300}){100}"}, "write out 90001 bytes"),
    "an expression with a number of many digits": (
        {"json_schema": {"$defs": {"u": {"pattern": "a{999999999}" + "{999999999}" * 1000}}}},
        "at /$defs/u: lexer error",
    ),
}
DATA_WITH_PATTERNS = {
    "const": {"const": DATA},
    "enum": {"enum": [DATA, {"a": [DATA]}]},
    "default": {"type": "string", "default": DATA},
    "examples": {"type": "string", "examples": [DATA]},
    "example": {"type": "object", "example": {"properties": {"a": DATA}}},
    "inside of a property": {"type": "object", "properties": {"const": {"const": DATA}}},
}
CHEAP = {
    "a million letters to choose": {"regex": "[a-z]{1,1000000}"},
    "five thousand letters, each with another one or not": {"regex": "(ab?){5000}"},
    "ten thousand letters": {"regex": "a{10000}"},
    "patterns of a thousand properties": {
        "json_schema": _of_patterns(*(f"^x{n}-[a-z0-9]{{1,63}}$" for n in range(1000)))
    },
    "the same pattern again and again": {"json_schema": _of_patterns(*["^[a-z]+0{17}$"] * 500)},
    "the same pattern with much text again and again": {"json_schema": _of_patterns(*["^[a-z]0{40}$"] * 260)},
    "sets by the numbers of their characters": {
        "json_schema": _of_patterns(*(rf"^{n}[\x20-\x7e]{{20}}[\u0020-\u007e]{{20}}$" for n in range(130)))
    },
    "sets of letters": {"json_schema": _of_patterns(*(rf"^{n}[\p{{L}} ]{{20}}$" for n in range(130)))},
    "sets of everything": {"json_schema": _of_patterns(*(rf"^{n}[\s\S]{{30}}$" for n in range(90)))},
    "many characters of a set": {"regex": r"[\x20-\x7e]{2501}"},
    "many of any characters": {"regex": r"[\s\S]{2600,}"},
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
    assert problem.startswith("sampling.structured.grammar cannot be compiled: lexer error")
    assert of_target.problem_with(structured) == problem
    assert of_target.num_compiled == 1


@pytest.mark.parametrize("name", TOO_MUCH_TEXT)
def test_patterns_that_are_too_large_together_are_refused_at_any_depth_and_never_compiled(name):
    value, said = TOO_MUCH_TEXT[name]
    of_target = grammars()
    problem = of_target.problem_with(Structured(**value))
    assert problem is not None
    assert said in problem
    assert len(problem) < 300
    assert of_target.num_compiled == 0


def test_places_with_long_names_are_not_written_for_each_pattern():
    schema = {"properties": {"n" * 10_000: {"properties": {f"p{n}": {"pattern": "a"} for n in range(2_000)}}}}
    tracemalloc.start()
    try:
        assert len(list(patterns_in(schema))) == 2_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_patterns_in_data_and_those_that_cost_little_are_accepted():
    forms = CHEAP | {name: {"json_schema": schema} for name, schema in DATA_WITH_PATTERNS.items()}
    found = {name: problem_with(Structured(**form)) for name, form in forms.items()}
    assert {name: problem for name, problem in found.items() if problem is not None} == {}


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
