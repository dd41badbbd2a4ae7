"""A vocabulary of 48 tokens that spell JSON, and a few grammars over it, for the tiny models."""

import json
import re
from collections.abc import Sequence
from copy import copy

import jsonschema
import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import Mask, TokenTable
from decoding.network.language_model import LanguageModel

END = 0
TOKENS = [b"<end>", *(bytes([byte]) for byte in b'{}[]":,0123456789-.abcdefghiklnrstu \n'), b"true", b"false", b"null"]
TOKENS += [b'{"', b'"}', b'":', b'","', b"ab", b"cd", b"12"]


def table_of(tokens: Sequence[bytes], eos_token_ids: frozenset[int]) -> TokenTable:
    """The table of these tokens, without a tokenizer: a text is tokenized greedily. The end tokens write nothing."""
    ends = sorted(eos_token_ids)
    return TokenTable(LLTokenizer(TokenizerWrapper(_Greedy(tokens, ends)), eos_token=ends), len(tokens), eos_token_ids)


class _Greedy:
    """A tokenizer for llguidance: the longest token that fits, again and again."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], ends: list[int]) -> None:
        self.tokens = [b"" if token_id in ends else token for token_id, token in enumerate(tokens)]
        self.eos_token_id, self.special_token_ids = ends[0], ends
        self._ids = {token: token_id for token_id, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        found, start = [], 0
        while start < len(text):
            size = next((n for n in range(self._longest, 0, -1) if text[start : start + n] in self._ids), 0)
            if not size:
                break
            found.append(self._ids[text[start : start + size]])
            start += size
        return found


TABLE = table_of(TOKENS, frozenset({END}))

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
