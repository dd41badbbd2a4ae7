"""VocabularyMap: which tokens of a draft are tokens of the target, where the two have different tokenizers.

Tokens are the same if they write the same bytes, whatever their ids and spellings. Only those can be drafted: this is
the token-level intersection of Timor et al., arXiv 2502.05202, algorithm 4. The beginning and the end of a text are
special tokens with different names in different families, so those that the tokenizers themselves declare are taken for
the same.

A byte-level tokenizer (GPT-2, Llama 3, Qwen) spells each byte as a character of its own alphabet. One made by
sentencepiece (Llama 2, Gemma, Mistral) writes spaces as "▁", and single bytes as "<0x0A>". Tokens that were added to
a vocabulary (all special ones are) stand for their own text.

Shapes: V token ids of the target, D those of the draft.
"""

import json
import re
from itertools import accumulate
from typing import Any, Self

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


_WITHOUT_TOKEN = -1


class VocabularyMap:
    """The target's tokens as the draft writes them."""

    def __init__(self, target: Any, draft: Any, target_size: int, draft_size: int, names: tuple[str, str]) -> None:
        """Compare two tokenizers of models that have this many token ids; `names` are those of target and draft.

        Raises ValueError if what their tokens write is not known.
        """
        self._backend = draft.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._unknown_id: int | None = draft.unk_token_id
        self.draft_bytes: list[bytes | None] = token_bytes(draft, names[1])[:draft_size]
        target_bytes = token_bytes(target, names[0])[:target_size]
        for role in ("bos_token_id", "eos_token_id"):
            own, others = getattr(draft, role), getattr(target, role)
            if own is not None and others is not None and own < draft_size and others < target_size:
                target_bytes[others] = self.draft_bytes[own]
        self._target_bytes: list[bytes | None] = target_bytes + [None] * (target_size - len(target_bytes))
        # The token that the draft's tokenizer puts before a text, if it does so.
        self.first_ids: list[int] = self._backend.encode("", add_special_tokens=True).ids
        if self.first_ids != [draft.bos_token_id]:
            self.first_ids = []
        own_ids, target_ids = _by_bytes(self.draft_bytes, draft), _by_bytes(target_bytes, target)
        end_id = target.eos_token_id  # where the draft begins and ends a text with one token, the end is drafted
        if end_id is not None and end_id < len(target_bytes) and (end := target_bytes[end_id]):
            target_ids[end] = end_id
        self._byte_ids = [own_ids.get(bytes([byte])) for byte in range(256)]
        self.draft_ids_V = [_WITHOUT_TOKEN] * target_size
        for spelled, target_id in target_ids.items():
            self.draft_ids_V[target_id] = own_ids.get(spelled, _WITHOUT_TOKEN)

    @classmethod
    def between(cls, target: str, draft: str, target_size: int, draft_size: int) -> Self:
        """Compare the tokenizers in two folders. Raises ValueError if one is missing, or cannot be compared."""
        return cls(load_tokenizer(target), load_tokenizer(draft), target_size, draft_size, (target, draft))

    @property
    def num_common(self) -> int:
        """How many tokens the two have in common."""
        return sum(draft_id != _WITHOUT_TOKEN for draft_id in self.draft_ids_V)

    def written(self, token_ids: list[int]) -> bytes | None:
        """Return what tokens of the target write, as the draft shall read it; None if one of them writes nothing."""
        parts = [self._target_bytes[token_id] for token_id in token_ids]
        return None if None in parts else b"".join(part for part in parts if part is not None)

    def draft_tokens(self, written: bytes) -> tuple[list[int], list[int]] | None:
        """Return the draft's own tokens of a text, and where each ends in it, in bytes; None if it cannot write it.

        Bytes that are no characters (half of one at the end, say) become single-byte tokens. Tokens that write parts of
        one character all end where it does.
        """
        tokens: list[int] = []
        ends: list[int] = []
        done = 0
        while done < len(written):
            try:
                text, num_stray = written[done:].decode(), 0
            except UnicodeDecodeError as error:
                text, num_stray = written[done : done + error.start].decode(), error.end - error.start
            encoding = self._backend.encode(text, add_special_tokens=False)
            if not _is_covered(text, encoding.offsets) or self._has_unknown(text, encoding):
                return None
            sizes = accumulate((len(character.encode()) for character in text), initial=0)
            until = range(len(text) + 1) if text.isascii() else list(sizes)
            tokens += encoding.ids
            ends += [done + until[end] for _, end in encoding.offsets]
            done += until[-1]
            for byte in written[done : done + num_stray]:
                own = self._byte_ids[byte]
                tokens.append(_WITHOUT_TOKEN if own is None else own)
                done += 1
                ends.append(done)
        if any(each == _WITHOUT_TOKEN or each >= len(self.draft_bytes) for each in tokens):
            return None
        return tokens, ends

    def _has_unknown(self, text: str, encoding: Any) -> bool:
        """Tell whether a token stands for a part of this text that has no token.

        Where the unknown token's own name is written, it stands for that: in many vocabularies it also begins and ends
        texts.
        """
        unknown = [index for index, token_id in enumerate(encoding.ids) if token_id == self._unknown_id]
        return any(text[slice(*encoding.offsets[index])].strip() != encoding.tokens[index] for index in unknown)

    def share_in_common(self, token_ids: list[int]) -> float:
        """Return the share of these tokens of the target that the draft has, too."""
        return sum(self.draft_ids_V[token_id] != _WITHOUT_TOKEN for token_id in token_ids) / max(1, len(token_ids))


def _is_covered(text: str, offsets: list[tuple[int, int]]) -> bool:
    """Tell whether tokens with these offsets write all characters of a text but white space."""
    done = 0
    for first, end in (*offsets, (len(text), len(text))):
        if first > done and not text[done:first].isspace():
            return False
        done = max(done, end)
    return True


def _by_bytes(written: list[bytes | None], tokenizer: Any) -> dict[bytes, int]:
    """Return one id for each text; of several that write it, the one whose name is not that of a single byte."""
    names = tokenizer.convert_ids_to_tokens(list(range(len(written))))
    found: dict[bytes, int] = {}
    for token_id, (text, name) in enumerate(zip(written, names, strict=True)):
        if text and (text not in found or str(names[found[text]]).startswith("<0x")):
            found[text] = token_id if not (text in found and str(name).startswith("<0x")) else found[text]
    return found
