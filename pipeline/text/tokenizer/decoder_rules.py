"""The rules, read from a tokenizer, by which a token settles the text so far, whatever tokens follow."""

from __future__ import annotations

import json
import re
from typing import Any

_BYTE = re.compile(r"<0x[0-9a-fA-F]{2}>")
# Decoders of `tokenizers` that write each token behind the others and do not change earlier text.
_BY_TOKEN = {"Replace", "ByteFallback", "Strip", "Metaspace", "WordPiece", "BPEDecoder"}


class DecoderRules:
    """The rules of one tokenizer. If `is_steady` is False, they are not known, and no token settles the text.

    A run of byte tokens ("<0xE2>") is decoded as a whole when it is over: one wrong byte in it, and none of them is a
    character. So the text is settled only behind a token that ends such a run; special tokens, which are left out of
    the text, do not end it.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)  # without one, tokens are joined with spaces
        steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
        self.is_steady = backend is not None and (decoder is None or _is_steady(steps))
        self._has_bytes = backend is None or any(step["type"] == "ByteFallback" for step in steps)
        self._tokenizer = tokenizer
        self._special = special_tokens(tokenizer).keys()
        self._settles: dict[int, bool] = {}

    def settles(self, token_id: int) -> bool:
        """Tell whether the text up to and with this token stays as it is, except half a character at its end."""
        known = self._settles.get(token_id)
        if known is None:
            name = self._tokenizer.convert_ids_to_tokens(token_id)  # None: an id without a token, left out, too
            is_byte = self._has_bytes and name is not None and _BYTE.fullmatch(name) is not None
            known = name is not None and token_id not in self._special and not is_byte
            self._settles[token_id] = known
        return known


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the special tokens of a tokenizer, by their ids."""
    own = zip(getattr(tokenizer, "all_special_ids", ()), getattr(tokenizer, "all_special_tokens", ()), strict=True)
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    special = {token_id: str(token.content) for token_id, token in added if token.special}
    return {token_id: str(token) for token_id, token in own} | special


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_steady(steps: list[dict[str, Any]]) -> bool:
    is_whole = False  # whether a step's input is one text, no longer tokens
    for step in steps:
        kind = step["type"]
        if kind == "Strip" and is_whole:
            if step["stop"] or step["start"] > 1:
                return False
        elif kind in ("Fuse", "ByteLevel"):
            if kind == "ByteLevel" and is_whole:
                return False
            is_whole = True
        elif kind not in _BY_TOKEN or is_whole:
            return False
    return True
