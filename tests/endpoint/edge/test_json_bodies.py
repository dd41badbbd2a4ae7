"""What is JSON and what only looks like it."""

import json

import pytest

from pipeline.requests.strict_json import JsonError, parse_object

SECRET = "secret"
NOT_AT_ALL = "The body is not JSON at line 1, column 1."
NO_OBJECT = "The body must be a JSON object."
HALF_A_PAIR = "The body has half of a surrogate pair (\\ud800 to \\udfff)."
TWICE = "The body has the same key twice in one object."
REMEDY = "use fewer levels; a JSON Schema may name its inner parts in $defs"
TOO_DEEP = f"a: the body is nested deeper than 32 levels here; {REMEDY}"
WRONG = {
    "nothing": (b"", NOT_AT_ALL),
    "a word": (b"secret", NOT_AT_ALL),
    "half": (b'{"a": ', "The body is not JSON at line 1, column 7."),
    "a trailing comma": (b'{"a": 1,}', "The body is not JSON at line 1, column 9."),
    "two": (b"{} {}", "The body is not JSON at line 1, column 4."),
    "single quotes": (b"{'a': 1}", "The body is not JSON at line 1, column 2."),
    "a comment": (b'{"a": 1 // secret\n}', "The body is not JSON at line 1, column 9."),
    "a raw line end": (b'{"a": "x\ny"}', "The body is not JSON at line 1, column 9."),
    "an escape that is none": (b'{"a": "\\x41"}', "The body is not JSON at line 1, column 8."),
    "NaN": (b'{"a": NaN}', "NaN is not JSON; a number must be finite."),
    "infinity": (b'{"a": Infinity}', "Infinity is not JSON; a number must be finite."),
    "minus infinity": (b'{"a": -Infinity}', "-Infinity is not JSON; a number must be finite."),
    "a float without end": (b'{"a": 1e999}', "The body has a number that is too large for a float."),
    "an integer without end": (b'{"a": ' + b"9" * 5000 + b"}", "The body has a number with too many digits."),
    "an array": (b"[1]", NO_OBJECT),
    "a string": (b'"secret"', NO_OBJECT),
    "null": (b"null", NO_OBJECT),
    "Latin-1": ('{"a": "secret é"}'.encode("latin-1"), "The body is not UTF-8: byte 14 begins no character."),
    "UTF-16": ('{"a": "secret"}'.encode("utf-16"), "The body is not UTF-8: byte 0 begins no character."),
    "a byte order mark": (b"\xef\xbb\xbf{}", NOT_AT_ALL),
    "a lone surrogate": (b'{"a": "\\ud83d"}', HALF_A_PAIR),
    "surrogates the wrong way": (b'{"a": ["\\udc00\\ud83d"]}', HALF_A_PAIR),
    "a lone surrogate in a name": (b'{"\\uD83D": 1}', HALF_A_PAIR),
    "a name twice": (b'{"a": 1, "b": 2, "a": 3}', TWICE),
    "a name twice inside": (b'{"a": [{"b": 1, "b": 1}]}', TWICE),
    "a name twice, once escaped": (b'{"a": 1, "\\u0061": 2}', TWICE),
    "arrays in arrays": (b'{"a": ' + b"[" * 1_000_000, TOO_DEEP),
    "objects in objects": (b'{"a": ' * 100_000, TOO_DEEP),
    "arrays of nothing": (b"[" * 100, "The body is nested deeper than 32 levels."),
    "deep behind other fields": (b'{"b": ["x", {"c": "y"}], "a": "[[[[", "a": ' + b"[" * 100, TOO_DEEP),
    "deep, and well ended": (b'{"a": ' + b"[" * 32 + b"]" * 32 + b"}", TOO_DEEP),
}


@pytest.mark.parametrize(("body", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_body_that_is_not_strict_json_is_refused_without_quoting_it(body, message):
    with pytest.raises(JsonError) as refused:
        parse_object(body, "The body", 32)
    assert str(refused.value) == message
    assert SECRET not in message


def test_a_repeated_key_is_the_param_of_its_error():
    for body, param in ((b'{"top_p": 1, "top_p": 2}', "top_p"), (b'{"\\n": 1, "\\n": 2}', None)):
        with pytest.raises(JsonError) as refused:
            parse_object(body, "The body", 32)
        assert refused.value.name == param


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")},
        {"prompt": [[1, 2, 3]] * 50, "x": {"y": [{}] * 40}},
        {"a": "[[[[{{{{" * 20, "b": '"\\"[' * 20, "c": "\\\\"},
        {"a": 0.1, "b": -1e-300, "c": 2**63, "d": None, "e": True},
        {"": {"a": {"a": 1}}, "\u0000": "\u0000"},
    ],
    ids=["empty", "an emoji", "many brackets side by side", "brackets in strings", "numbers", "strange names"],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_valid_json_is_parsed_as_python_parses_it(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_object(body, "The body", 32) == json.loads(body) == value


def test_nesting_up_to_the_limit_is_accepted():
    assert parse_object(b'{"a": ' + b"[" * 31 + b"]" * 31 + b"}", "The body", 32)


@pytest.mark.parametrize("tail", [b'"' + b'\\"' * 400_000, b'"' + b"a" * 1_000_000 + b'"', b'"\\' * 300_000])
def test_an_adversarial_body_is_scanned_in_linear_time(tail):
    """A reader that begins anew at every quote would take hours; this test would be ended for it."""
    with pytest.raises(JsonError):
        parse_object(b"[]" * 40 + tail, "The body", 32)
