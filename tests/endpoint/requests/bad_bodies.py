"""Bodies, paths and headers that are wrong. `edge/test_json_bodies.py` has every kind of body that is not JSON."""

from tests.endpoint.requests.bad_requests import (
    CHAT,
    COMPLETE,
    MESSAGE,
    OUTSIDE,
    TOKEN_ID,
    UNKNOWN,
    Bad,
    field,
    no_json,
    no_model,
    no_route,
)

TOO_DEEP = (
    "the body is nested deeper than 32 levels here; use fewer levels; a JSON Schema may name its inner parts in $defs"
)
REQUIRED = "is required", "missing_required_parameter"
ONE = "give a prompt or messages, and not both"
TOO_LONG = "expected at most 512 token ids, which is this model's context, got 513", "context_length_exceeded"
NOT_TAKEN = "The header {} is not taken from clients."
ID = "x-request-id must be 1 to 128 letters, digits or . _ ~ : + / = @ -, and be there once."

BAD_BODIES = [
    field("no prompt", COMPLETE, {"max_tokens": 2}, "prompt", *REQUIRED),
    field("no messages", CHAT, {"max_tokens": 2}, "messages", *REQUIRED),
    field("tokenize nothing", "/tokenize", {}, "prompt", ONE),
    field("tokenize both", "/tokenize", {"prompt": "a", "messages": [MESSAGE]}, "prompt", ONE),
    field("tokenize a number", "/tokenize", {"prompt": 1}, "prompt", "expected a string"),
    field("tokenize with a field that is none", "/tokenize", {"prompt": "a", "x": 1}, "x", *UNKNOWN),
    no_model("/tokenize", {"prompt": "a", "model": "b"}, "b"),
    field("detokenize nothing", "/detokenize", {}, "tokens", *REQUIRED),
    field("detokenize text", "/detokenize", {"tokens": "a"}, "tokens", "expected a list"),
    field("detokenize a negative id", "/detokenize", {"tokens": [1, -1]}, "tokens[1]", TOKEN_ID),
    field("detokenize an id beyond the vocabulary", "/detokenize", {"tokens": [100_000]}, "tokens", OUTSIDE),
    field("detokenize a fraction", "/detokenize", {"tokens": [1.5]}, "tokens[0]", TOKEN_ID),
    field("detokenize more than the context", "/detokenize", {"tokens": [1] * 513}, "tokens", *TOO_LONG),
    Bad("no body", COMPLETE, b"", 400, "the body: is required", None, "missing_required_parameter"),
    no_json("a field twice", b'{"prompt": 1, "prompt": 2}', "The body has the same key twice in one object.", "prompt"),
    no_json("a million arrays", b'{"prompt": ' + b"[" * 1_000_000, f"prompt: {TOO_DEEP}", "prompt"),
    no_route("a path that is none", "/v1/embeddings", {"input": "a"}, 404),
    no_route("a path with a slash too many", COMPLETE + "/", {"prompt": "a"}, 404),
    no_route("a path of no version", "/completions", {"prompt": "a"}, 404),
    no_route("GET of a completion", COMPLETE, None, 405, method="GET"),
    no_route("POST to the models", "/v1/models", {}, 405),
    no_route("DELETE of a model", "/v1/models/some/pair", None, 405, method="DELETE"),
    no_model("/v1/models/other", None, "other"),
    no_model("/v1/models/..%2f..%2fetc%2fpasswd", None, "../../etc/passwd"),
    no_model("/v1/models/../../etc/passwd", None, "../../etc/passwd"),
    no_model("/v1/models/%00", None, "\\x00"),
    no_model("/v1/models/%ff", None, "\\ufffd"),
    no_model("/v1/models/", None, ""),
    *(
        Bad(name, COMPLETE, {"prompt": "a"}, 400, NOT_TAKEN.format(name), name, None, headers=((name, "?1"),))
        for name in ("x-request-timeout-seconds", "x-request-disconnect-disabled")
    ),
    Bad("a strange id", COMPLETE, {"prompt": "a"}, 400, ID, None, None, headers=(("x-request-id", "a b"),)),
]
