"""The length in characters that a text of limited tokens can have, which is checked before it is tokenized."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pipeline.errors import LongTextError

# A normalizer composes at most this many characters into one: a Greek vowel and its three marks.
# https://www.unicode.org/reports/tr15
_MAX_COMPOSED = 4


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
