"""Stop strings: where in the output the text first holds one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import HALF_CHARACTER, TextBehind

# The window holds this many characters more than the longest stop string. Its first characters may differ from those of
# the whole text, because it can begin within a character.
_SPARE_CHARACTERS = 8


@dataclass(frozen=True)
class StopStrings:
    """The stop strings of a sequence. They may span tokens and rounds; only the output's end is decoded."""

    codec: TextCodec
    stop: tuple[str, ...]
    prompt_token_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(string, str) and string for string in self.stop):
            raise ValueError(f"stop: expected strings of at least one character, got {list(self.stop)}")

    def find(self, output_token_ids: Sequence[int], num_checked: int) -> tuple[int, str] | None:
        """Find the first match; return (number of output tokens to keep, the stop string that the last completes).

        Return None without a match. A match counts only if it ends after the first `num_checked` tokens, which were
        checked before or are below the minimum length. Of several, the one that ends first wins; of two that end
        together, the longer one.
        """
        if not self.stop or num_checked >= len(output_token_ids):
            return None
        start, checked_text = self._window(output_token_ids, num_checked)
        text = self._behind.decode(output_token_ids[start:])
        if HALF_CHARACTER not in text and self._first_match(text, len(checked_text)) is None:
            return None  # a text of whole characters only grows, so no shorter prefix of the tokens has a match
        for num_kept in range(num_checked + 1, len(output_token_ids) + 1):
            match = self._first_match(self._text(output_token_ids[start:num_kept]), len(checked_text))
            if match is not None:
                return num_kept, match
        return None

    def cut(self, kept_token_ids: Sequence[int], stop: str) -> str:
        """Return the text of the kept tokens up to, and without, the stop string that the last of them completed.

        Tokenizers that spell characters in bytes may decode a run of bytes with one wrong byte to no character at all.
        If the stop string is not in the text for that reason, the text stays as it is.
        """
        text = self._behind.decode(kept_token_ids)
        before = self._text(kept_token_ids[:-1])
        position = text.find(stop, max(0, len(before) - len(stop) + 1))
        return text if position < 0 else text[:position]

    def _window(self, token_ids: Sequence[int], num_checked: int) -> tuple[int, str]:
        """Return where the window starts, and the text of its checked tokens, which a match can begin in."""
        wanted = max(map(len, self.stop)) + _SPARE_CHARACTERS
        size = wanted
        while True:
            start = max(0, num_checked - size)
            text = self._text(token_ids[start:num_checked])
            if start == 0 or (len(text) >= wanted and not text.startswith(HALF_CHARACTER)):
                return start, text
            size *= 2

    def _text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens as far as its characters are complete."""
        return self._behind.decode(token_ids).rstrip(HALF_CHARACTER)

    @cached_property
    def _behind(self) -> TextBehind:
        return TextBehind(self.codec, self.prompt_token_ids)

    def _first_match(self, text: str, num_checked_characters: int) -> str | None:
        """Return the stop string that ends first after the checked characters."""
        starts = ((text.find(stop, max(0, num_checked_characters - len(stop) + 1)), stop) for stop in self.stop)
        matches = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        return min(matches)[2] if matches else None
