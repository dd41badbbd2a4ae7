"""Bad words: the tokens of a text that an output must not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_KEPT = 64  # lists of words, of which the longest has some thousand tokens


@dataclass(frozen=True)
class BadWordSpellings:
    """The token ids of the lists of words that one tokenizer has read last: rows often have the same words."""

    tokenizer: Any  # a transformers.PreTrainedTokenizerBase
    _kept: dict[tuple[str | tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def of(self, words: Sequence[str | tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Return these words as token ids, always the same object while it is kept.

        Raises ValueError for a text that has none.
        """
        words = tuple(words)
        found = self._kept.get(words)
        if found is None:
            ids: dict[tuple[int, ...], None] = {}
            for index, word in enumerate(words):
                try:
                    ids |= dict.fromkeys(bad_word_ids(self.tokenizer, word) if isinstance(word, str) else [word])
                except ValueError as error:
                    raise ValueError(f"sampling.bad_words[{index}] is {word!r}, and {error}") from error
            found = self._kept[words] = tuple(ids)
            while len(self._kept) > _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)), None)  # the oldest
        return found


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
