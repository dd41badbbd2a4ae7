"""Forms that are too large, have no end, contradict themselves or are nonsense."""

from tests.endpoint.requests.bad_requests import COMPLETE
from tests.endpoint.requests.hostile import CIRCLE, LARGE, LETTERS, MANY, OBJECT, Hostile, deep, needing, of_form
from tests.endpoint.requests.hostile import of_schema as of

SCHEMA, REGEX = "response_format.json_schema.schema", "structured_outputs.regex"
GRAMMAR, CHOICE = "structured_outputs.grammar", "structured_outputs.choice"
LEXER = "it cannot be compiled: lexer error: "
TOO_LARGE = f"{LEXER}the repetitions write out 1000000 bytes without a choice, more than 10000; use smaller counts"
NO_TEXT = "the grammar cannot be followed: no token can begin what it asks for"
NO_FURTHER = "the grammar cannot be followed further: NoExtensionBias (no text goes on as it asks: "
MANY_RULES = "start: " + " | ".join(f'"a{number}"' for number in range(30_000))
TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "minItems": 1}}, "$ref": "#/$defs/t"}
LATE = {**needing(k={"const": "abcdefgh"}, a={"$ref": "#/$defs/a"}), "$defs": CIRCLE["$defs"]}
TEXT = {"type": "string"}

SCHEMAS = [
    Hostile("a million letters in a pattern", of({**TEXT, "pattern": LARGE}), SCHEMA, TOO_LARGE),
    Hostile(
        "a million letters behind another property",
        of(needing(k={"const": "abcdefgh"}, a={**TEXT, "pattern": LARGE})),
        SCHEMA,
        "it cannot be compiled at /properties/a: lexer error: the repetitions write out 1000000 bytes",
    ),
    Hostile(
        "many patterns of some letters",
        of(needing(**{f"p{number}": {**TEXT, "pattern": f"^[a-z]{{4}}a{{{900 + number}}}$"} for number in range(12)})),
        SCHEMA,
        "it cannot be compiled at /properties/p11: lexer error: the repetitions of this pattern and of those before it",
    ),
    Hostile("a name of a million letters", of({"patternProperties": {LARGE: {}}}), SCHEMA, "/patternProperties: lexer"),
    Hostile("3,000 optional properties", of(MANY), SCHEMA, "(use fewer properties or alternatives)", is_slow=True),
    Hostile(
        "20,000 constants",
        of({"enum": [f"value {number}" for number in range(20_000)]}),
        SCHEMA,
        "(use fewer or shorter texts)",
        is_slow=True,
    ),
    Hostile("arrays of 60 levels", of(deep(60)), "response_format", "the body is nested deeper than 32 levels here"),
    Hostile("arrays of 300 levels", of(deep(300)), "response_format", "may name its inner parts in $defs"),
    Hostile("references in a circle", of(CIRCLE), SCHEMA, NO_TEXT),
    Hostile("references in a circle behind a property", of(LATE), SCHEMA, NO_FURTHER),
    Hostile("a reference to nothing", of({"$ref": "#/$defs/a"}), SCHEMA, "Pointer '/$defs/a' does not exist"),
    Hostile(
        "a reference to a page", of({"$ref": "https://a.test/b.json"}), SCHEMA, "lead to places of the same schema"
    ),
    Hostile("a reference to a file", of({"$ref": "file:///etc/passwd"}), SCHEMA, "lead to places of the same schema"),
    Hostile("a tree without leaves", of(TREE)),
    Hostile("a text without an end", of({**TEXT, "pattern": "^[a-z]{100000,}$"})),
    Hostile("a text of a billion letters at least", of({**TEXT, "minLength": 10**9})),
    Hostile(
        "an array of a billion numbers at least", of({"type": "array", "items": {"type": "integer"}, "minItems": 10**9})
    ),
    Hostile("an object that cannot be", of(needing(a=False)), SCHEMA, "required property 'a' is unsatisfiable"),
    Hostile(
        "a least number above the greatest", of({"type": "integer", "minimum": 5, "maximum": 4}), SCHEMA, "greater"
    ),
    Hostile("numbers of 300 digits", of({"type": "integer", "minimum": 10**300}), SCHEMA, "it cannot be compiled: "),
    Hostile("what is not a text", of({"not": TEXT}), SCHEMA, 'keys: ["not"] (leave them out: they are not supported)'),
    Hostile("one of two overlapping schemas", of({"oneOf": [LETTERS, LETTERS]}), SCHEMA, "(use anyOf)"),
    Hostile("options that are a number", of({"x-guidance": 7}), SCHEMA, "it cannot be compiled: invalid type"),
    Hostile("a schema that is a list", of([OBJECT]), SCHEMA, "expected an object, got a list"),
    Hostile("JSON text of 3,000 levels", of_form(json='{"a":' * 3000), "structured_outputs.json", "too many levels"),
    Hostile("JSON that is a number", {"guided_json": 7}, "guided_json", "it must be an object, got 7"),
    Hostile(
        "a schema of a response",
        {"input": "a", "max_tokens": None, "text": {"format": {"type": "json_schema", "name": "n", "schema": CIRCLE}}},
        "text.format.schema",
        NO_TEXT,
        path="/v1/responses",
    ),
]
OTHERS = [
    Hostile("a million letters", of_form(regex="(a{1000}){1000}"), REGEX, TOO_LARGE),
    Hostile("letters behind some others", of_form(regex="[a-z]{4}(a{1000}){1000}"), REGEX, "write out 1000003 bytes"),
    Hostile("a hundred million letters", of_form(regex="(((a{100}){100}){100}){100}"), REGEX, "write out 100000000 by"),
    Hostile("a billion letters", of_form(regex="a{1000000000}"), REGEX, "write out 1000000000 bytes"),
    Hostile("letters in many ways", of_form(regex="[a-z]{4}(b+){1000}"), REGEX, f"{LEXER}too many expressions"),
    Hostile("a rule of a million letters", of_form(grammar="start: /(a{1000}){1000}/"), GRAMMAR, f"{LEXER}too many"),
    Hostile("states without number", of_form(regex="(a|b)*a(a|b){1000}")),
    Hostile(
        "5,000 brackets",
        of_form(regex="(" * 5000 + "a" + ")" * 5000),
        REGEX,
        "number of nested parentheses",
    ),
    Hostile("an expression of a megabyte", of_form(regex="a|" * 600_000), REGEX, "at most 1048576 characters, got 120"),
    Hostile("what comes next", of_form(regex="(?=a)b"), REGEX, "look-around, including look-ahead"),
    Hostile(
        "an expression for a completion",
        {"prompt": "a", "guided_regex": "a(b"},
        "guided_regex",
        "it cannot be compiled: at 1(8): invalid regex",
        path=COMPLETE,
    ),
    Hostile("a rule of 30,000 alternatives", of_form(grammar=MANY_RULES), GRAMMAR, "symbols) too big", is_slow=True),
    Hostile("a grammar in a circle", of_form(grammar="start: start"), GRAMMAR, NO_TEXT),
    Hostile("a circle behind a text", of_form(grammar='start: "hello world" x\nx: x'), GRAMMAR, NO_FURTHER),
    Hostile("a grammar without a start", of_form(grammar='a: "b"'), GRAMMAR, "start"),
    Hostile(
        "a grammar that reads a file", of_form(grammar='%import /etc/passwd\nstart: "a"'), GRAMMAR, "Expected name"
    ),
    Hostile("a token that is none", of_form(grammar="start: <[99999999]>"), GRAMMAR, "end too large: 99999999"),
    Hostile("rules of 5,000 levels", of_form(grammar=f"start: {'(' * 5000}"), GRAMMAR, "too deeply nested"),
    Hostile("a choice of an empty text", of_form(choice=[""]), CHOICE, "a list of non-empty texts, got ['']"),
    Hostile("a choice of numbers", of_form(choice=[1, 2]), CHOICE, "a list of non-empty texts, got [1, 2]"),
    Hostile("a text of 500,000 letters", of_form(choice=["x" * 500_000]), CHOICE, f"{LEXER}too many", is_slow=True),
    Hostile(
        "a form that allowed tokens leave nothing of",
        {**of_form(regex="a+"), "allowed_token_ids": [5]},
        "allowed_token_ids",
        "it and structured_outputs.regex leave no token after 0 output tokens; change one of them",
    ),
    Hostile(
        "a choice of a bad word",
        {**of_form(choice=["a"]), "bad_words": ["a"]},
        "bad_words",
        "it and structured_outputs.choice leave no token after 0 output tokens",
    ),
    Hostile("a form without its end", {**of_form(regex="a"), "ignore_eos": True}, "ignore_eos", "forbid the end token"),
    Hostile(
        "more tokens than the form has",
        {**of_form(choice=["a"]), "min_tokens": 9},
        "min_tokens",
        "which would forbid the end token where the grammar of structured_outputs.choice asks for it",
    ),
]
HOSTILE_FORMS = [*SCHEMAS, *OTHERS]
