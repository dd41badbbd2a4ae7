"""Token bytes: what each token id writes. Two tokenizers are compared by it, as their ids and spellings differ.

A byte-level tokenizer (GPT-2, Llama 3, Qwen) spells each byte as a character of its own alphabet. One made by
sentencepiece (Llama 2, Gemma, Mistral) writes spaces as "▁", and single bytes as "<0x0A>". Tokens that were added to
a vocabulary (all special ones are) stand for their own text.
"""

import json
import re
from typing import Any

from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from decoding.checkpoint.supported import in_one_line

_BYTE = re.compile(r"<0x([0-9a-fA-F]{2})>")
_SPACE = "▁"
_SENTENCEPIECE = {"Metaspace", "ByteFallback"}


def load_tokenizer(path: str) -> Any:
    """Load the tokenizer in a folder. Raises ValueError if there is none that the library `tokenizers` runs."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # those of the tokenizers library have no type of their own
        raise ValueError(f"the tokenizer of {path!r} cannot be loaded: {in_one_line(error)}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ValueError(
            f"the tokenizer of {path!r} ({type(tokenizer).__name__}) is not one of the library `tokenizers`, whose "
            "tokens can be compared; put a tokenizer.json into the folder"
        )
    return tokenizer


def token_bytes(tokenizer: Any, path: str) -> list[bytes | None]:
    """Return what each token id writes; None for an id that has no token, or one that writes no whole bytes.

    Raises ValueError for a tokenizer of `path` that is neither byte-level nor made by sentencepiece.
    """
    backend = tokenizer.backend_tokenizer
    decoders = _names_in(json.loads(backend.to_str())["decoder"])
    is_byte_level = "ByteLevel" in decoders
    if not is_byte_level and not decoders & _SENTENCEPIECE:
        raise ValueError(
            f"the tokenizer of {path!r} writes its tokens in a way that is not known here (its decoder is "
            f"{', '.join(sorted(decoders)) or 'none'}), so they cannot be compared with others; use a draft of the "
            "target's own family"
        )
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    found: list[bytes | None] = [None] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        if token in added:
            found[token_id] = token.encode()
        elif is_byte_level:
            found[token_id] = bytes(byte_of[each] for each in token) if all(each in byte_of for each in token) else None
        elif is_byte := _BYTE.fullmatch(token):
            found[token_id] = bytes([int(is_byte[1], 16)])
        else:
            found[token_id] = token.replace(_SPACE, " ").encode()
    return found


def _names_in(decoder: dict[str, Any] | None) -> set[str]:
    """Return the names of a decoder's steps. A step that writes "▁" as a space counts as Metaspace."""
    if decoder is None:
        return set()
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    is_space = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {"Metaspace" if step == is_space else step["type"] for step in steps}
