"""What is read from one tokenizer: how it decodes, how long its texts may be, and the tokens of bad words."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import LongTextError

# Every tokenizer folder has one of these files.
_TOKENIZER_FILES: tuple[str, ...] = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_TOKENIZER_FILES += ("vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json")
# A normalizer composes at most this many characters into one: a Greek vowel and its three marks.
# https://www.unicode.org/reports/tr15
_MAX_COMPOSED = 4
_BYTE = re.compile(r"<0x[0-9a-fA-F]{2}>")
# Decoders of `tokenizers` that write each token behind the others and do not change earlier text.
_BY_TOKEN = {"Replace", "ByteFallback", "Strip", "Metaspace", "WordPiece", "BPEDecoder"}


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a folder. Raises ValueError if none loads without running code of its own."""
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(
            f"no tokenizer in {path} (looked for {', '.join(_TOKENIZER_FILES)}); put one there, or set "
            "models.tokenizer to a folder or hub name that has one"
        )
    from transformers import AutoTokenizer  # here, because the import takes seconds and planning does not need it

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"cannot load a tokenizer from {path}: {_load_failure(error)}") from error


def _load_failure(error: Exception) -> str:
    """Return in one line why a tokenizer does not load; transformers' own text may advise to run foreign code."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return (
            "it has code of its own (auto_map), which Dray never runs; set models.tokenizer to a folder whose "
            "tokenizer transformers itself has"
        )
    return text if isinstance(error, OSError | ValueError | ImportError) else f"{type(error).__name__}: {text}"


def bad_words_ids(tokenizer: Any, words: tuple[str | tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return bad words as token ids. Raises ValueError for a text that has none."""
    ids: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        try:
            ids |= dict.fromkeys(bad_word_ids(tokenizer, word) if isinstance(word, str) else [word])
        except ValueError as error:
            raise ValueError(f"sampling.bad_words[{index}] is {word!r}, and {error}") from error
    return tuple(ids)


def bad_word_ids(tokenizer: Any, text: str) -> list[tuple[int, ...]]:
    """Return the token ids of a text where it begins an output, and where a space is before it, if these differ.

    vLLM leaves the second out where it has another number of tokens than the first. Here it stays: a word that is
    forbidden is forbidden behind a space, too. Raises ValueError for a text without tokens.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a surrogate pair, which is no character: {error}") from error
    bare = text.lstrip(" ")
    found = []
    for spelling in [bare, f" {bare}"] if bare else [text]:
        found.append(tuple(tokenizer(spelling, add_special_tokens=False, verbose=False)["input_ids"]))
    if not all(found):
        raise ValueError("it has no tokens: the tokenizer drops all of its characters")
    return list(dict.fromkeys(found))


class TextLength:
    """The length check of one tokenizer.

    A token's name has at least one character for every byte, so no token has more characters of text than its name.
    This holds for normalized text, which may be shorter (e and an accent become one character). A tokenizer may drop
    text after that (spaces, runs of unknown characters), or its normalizer may drop more than composing does; then the
    check refuses some texts that would fit.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)

    def check(self, text: str, max_tokens: int) -> None:
        """Raise LongTextError if the text cannot be written in `max_tokens` tokens."""
        self.check_roughly(len(text), max_tokens)  # first, because normalizing a long text makes all threads wait
        max_characters = max_tokens * self._longest_token
        num_characters = len(text)
        if num_characters > max_characters and self._normalizer is not None:
            num_characters = len(self._normalizer.normalize_str(text))
        if num_characters > max_characters:
            raise LongTextError(num_characters, max_characters, max_tokens)

    def check_roughly(self, num_characters: int, max_tokens: int) -> None:
        """Raise LongTextError if no text of `num_characters` fits into `max_tokens` tokens, normalized or not."""
        max_characters = max_tokens * self._longest_token
        if num_characters > _MAX_COMPOSED * max_characters:
            raise LongTextError(num_characters, max_characters, max_tokens)

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))


class DecoderRules:
    """The rules of one tokenizer. If `is_steady` is False, they are not known, and no token settles the text.

    A run of byte tokens ("<0xE2>") is decoded as a whole when it is over: one wrong byte in it, and none of them is a
    character. So the text is settled only behind a token that ends such a run; special tokens, which are left out of
    the text, do not end it.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)  # without one, tokens are joined with spaces
        described: dict[str, Any] = {"decoders": []} if decoder is None else json.loads(decoder.__getstate__())
        steps = described.get("decoders", [described])  # of a sequence, or the one that it is
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
