"""TextLength: how long a text may be that is to fit into so many tokens. Looked at before it is tokenized."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pipeline.errors import LongTextError

# Characters that a normalizer makes one of, at most: a Greek vowel with three marks. https://www.unicode.org/reports/tr15
_MOST_COMPOSED = 4


class TextLength:
    """Of one tokenizer.

    No token stands for more characters than its own name has, where a byte is written as one character or more. That
    holds for the text as the tokenizer's normalizer leaves it, which may be shorter (e and an accent become one
    character). Where a tokenizer drops text behind that (spaces, runs of what it does not know), or its normalizer
    drops more than composing does, more would fit than is let through.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Reads the vocabulary when it is first needed."""
        self._tokenizer = tokenizer
        self._normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)

    def check(self, text: str, most_tokens: int) -> None:
        """Raise LongTextError if the text cannot be written in so many tokens."""
        self.check_roughly(len(text), most_tokens)  # what is normalized keeps all threads waiting
        most_characters = most_tokens * self._longest_token
        num_characters = len(text)
        if num_characters > most_characters and self._normalizer is not None:
            num_characters = len(self._normalizer.normalize_str(text))
        if num_characters > most_characters:
            raise LongTextError(num_characters, most_characters, most_tokens)

    def check_roughly(self, num_characters: int, most_tokens: int) -> None:
        """Raise LongTextError if no text of so many characters can be written in so many tokens, normalized or not."""
        most_characters = most_tokens * self._longest_token
        if num_characters > _MOST_COMPOSED * most_characters:
            raise LongTextError(num_characters, most_characters, most_tokens)

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._tokenizer.get_vocab()))
