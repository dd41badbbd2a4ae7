"""A vocabulary of 48 tokens that spell JSON, and a few grammars over it, for the tiny models."""

import json
import re
from copy import copy

import jsonschema
import numpy as np

from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import Mask, TokenTable
from decoding.network.language_model import LanguageModel

END = 0
TOKENS = [b"<end>", *(bytes([byte]) for byte in b'{}[]":,0123456789-.abcdefghiklnrstu \n'), b"true", b"false", b"null"]
TOKENS += [b'{"', b'"}', b'":', b'","', b"ab", b"cd", b"12"]
TABLE = TokenTable.of_tokens(TOKENS, frozenset({END}))

RECORD = {
    "type": "object",
    "properties": {"ab": {"type": "integer"}, "cd": {"type": "boolean"}, "k": {"$ref": "#/$defs/list"}},
    "required": ["ab", "cd"],
    "additionalProperties": False,
    "$defs": {"list": {"type": "array", "items": {"enum": ["a", "bc", 12]}, "maxItems": 3}},
}
SHORT = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 4}
STRUCTURED = [
    Structured(json_schema=RECORD, disable_any_whitespace=True),
    Structured(choice=["ab", "abc", "12 cd", "i"]),
    Structured(regex="[a-d]{3,6}-[0-9]{2}"),
    Structured(json_schema=SHORT),
    Structured(grammar='start: "a" start "b" | "c" | "{" start "}"'),
    Structured(json_object=True),
]


def grammars(**options: int) -> Grammars:
    """What compiles grammars over the tokens above."""
    return Grammars(lambda: TABLE, **options)


def with_end(target: LanguageModel) -> LanguageModel:
    """The same model, whose end token is that of the tokens above."""
    twin = copy(target)
    twin.eos_token_ids = frozenset({END})
    return twin


def allowed(mask: Mask | None) -> list[int] | None:
    """The token ids of a mask."""
    if mask is None:
        return None
    return np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(TOKENS)).nonzero()[0].tolist()


def text_of(token_ids: list[int]) -> str:
    """What the tokens write; the end token writes nothing."""
    return b"".join(TOKENS[token_id] for token_id in token_ids if token_id != END).decode()


def fulfils(text: str, structured: Structured) -> bool:
    """Whether a whole output is what was asked for, by other means than ours."""
    match structured.kind:
        case "json_schema":
            jsonschema.validate(json.loads(text), structured.schema)
            return True
        case "json_object":
            return isinstance(json.loads(text), dict)
        case "choice":
            return text in structured.choice
        case "regex":
            return re.fullmatch(structured.regex, text) is not None
        case _:
            while (inner := re.sub(r"acb|\{c\}", "c", text)) != text:
                text = inner
            return text == "c"
