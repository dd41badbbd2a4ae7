"""The text that tokens have behind a prompt: of all of them, while they arrive, and up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pipeline.text.tokenizer import DecoderRules

HALF_CHARACTER = "\ufffd"  # a tokenizer writes it for bytes that are not (yet) a character
_FEWEST = 4  # tokens of context
_FEW = 2  # tokens whose text is kept: a token and the one before it
# The window holds this many characters more than the longest stop string. Its first characters may differ from those of
# the whole text, because it can begin within a character.
_SPARE_CHARACTERS = 8


class Decodes(Protocol):
    """What turns tokens into text: a `TextCodec`, whose module imports this one."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, as a text of its own."""

    @property
    def decoder_rules(self) -> DecoderRules:
        """The rules by which a token settles the text so far."""

    @property
    def a_letter(self) -> list[int]:
        """Tokens of a text that is one letter."""

    @property
    def decode_few(self) -> Callable[[tuple[int, ...]], str]:
        """`decode`, which keeps what it returned."""

    @property
    def of_all_tokens(self) -> Decodes:
        """The same, with texts that show every special token."""


@dataclass(frozen=True)
class TextBehind:
    """The texts of output tokens: what prompt and output decode to together, less what the prompt decodes to.

    Many tokenizers drop the first space of a text (Llama 2, Mistral, BERT). An output is no text of its own, so its
    first space stays where it is the prompt's text that comes first.
    """

    codec: Decodes
    prompt_token_ids: Sequence[int] = ()

    @cached_property
    def context(self) -> list[int]:
        """Tokens behind which an output has the text that it has behind the prompt; none if the prompt has no text.

        They are the last tokens of the prompt that settle its text (`DecoderRules`), so that no character, and no run
        of bytes that are decoded together, begins before them or ends in the output.
        """
        prompt, settles = self.prompt_token_ids, self.codec.decoder_rules.settles
        end = len(prompt)
        while end and (not settles(prompt[end - 1]) or self._text(end - 1, end).endswith(HALF_CHARACTER)):
            end -= 1
        size = _FEWEST
        while size < end:
            text = self._text(end - size, end)
            if text and not text.startswith(HALF_CHARACTER) and settles(prompt[end - size]):
                return list(prompt[end - size : end])
            size *= 2
        if end or not self._text(0, len(prompt)):
            return list(prompt[:end])
        return list(self.codec.a_letter)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens right behind the prompt."""
        return str(self.codec.decode([*self.context, *token_ids]))[self._num_before :]

    @cached_property
    def _num_before(self) -> int:
        return len(self.codec.decode(self.context))

    def _text(self, start: int, end: int) -> str:
        return str(self.codec.decode(self.prompt_token_ids[start:end]))


class IncrementalDecoder:
    """A decoder whose pieces of text, joined, are the text of all tokens, however these are split into pushes.

    It holds back the text that later tokens may still change: half a character, and bytes that are decoded together
    with those to come (`DecoderRules`). If the rules of a tokenizer are not known, it holds back everything. Of several
    U+FFFD at the end of a text only the last one can become a character, so only that one is held back, and the tokens
    that are decoded again stay few.

    A token's text may depend on the token before it (a leading space that only the first word loses). So new tokens are
    decoded together with the last ones that had text, and the text of those alone is cut off. Those of the prompt are
    the first (`TextBehind`).
    """

    def __init__(self, codec: Decodes, prompt_token_ids: Sequence[int] = ()) -> None:
        self._codec = codec
        self._rules = codec.decoder_rules
        self._token_ids = list(TextBehind(codec, prompt_token_ids).context)
        self._context_start = 0  # tokens [context_start, emitted_end) are decoded again as context
        self._emitted_end = len(self._token_ids)  # the text of tokens [0, emitted_end) was returned, except
        self._num_held = 0  # this number of U+FFFD at its end: 0 or 1

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens and return the text that they settle; "" if they end within a character."""
        self._token_ids += token_ids
        num_unsettled = 0
        while num_unsettled < len(token_ids) and not self._settles(token_ids[-1 - num_unsettled]):
            num_unsettled += 1
        if num_unsettled == len(token_ids):
            return ""
        return "".join(self._emit(len(self._token_ids) - num_unsettled, self._emitted_end))

    def push_one(self, token_id: int) -> tuple[str, str]:
        """Add a token and return the text of earlier tokens that it settles, and the text that it adds or completes."""
        self._token_ids.append(token_id)
        if not self._settles(token_id):
            return "", ""
        return self._emit(len(self._token_ids), len(self._token_ids) - 1)

    def preview(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens would add, special ones by their names; they are not added."""
        codec, before = self._codec.of_all_tokens, self._token_ids[self._context_start :]
        known, text = str(codec.decode(before)), str(codec.decode([*before, *token_ids]))
        is_same = [one == other for one, other in zip(known, text, strict=False)]
        return text[(*is_same, False).index(False) :]

    def flush(self) -> str:
        """Return the rest once no token will follow, with U+FFFD for characters that were never completed."""
        return "".join(self._emit(len(self._token_ids), self._emitted_end, is_over=True))

    def _settles(self, token_id: int) -> bool:
        return self._rules.is_steady and self._rules.settles(token_id)

    def _emit(self, end: int, new: int, *, is_over: bool = False) -> tuple[str, str]:
        """Return the text, not returned so far, of the tokens before `new`, and that of the tokens in [new, end)."""
        start = self._context_start
        before = self._decode(start, self._emitted_end)
        num_out = len(before) - self._num_held
        if new > self._emitted_end:
            before = self._decode(start, new)
        text = self._decode(start, end)
        num_held = int(text.endswith(HALF_CHARACTER) and not is_over)
        # A character that is split between the two is at least two U+FFFD if they are decoded apart, and one together.
        is_split = before.endswith(HALF_CHARACTER) and len(text) < len(before) + len(self._decode(new, end))
        middle = max(num_out, len(before) - is_split)
        if not is_split and len(text) > len(before):  # tokens without text, such as special ones, are no context
            self._context_start = new
        self._emitted_end, self._num_held = end, num_held
        shown = text[: len(text) - num_held]
        return shown[num_out:middle], shown[middle:]

    def _decode(self, start: int, end: int) -> str:
        token_ids = self._token_ids[start:end]
        few = len(token_ids) <= _FEW
        return str(self._codec.decode_few(tuple(token_ids)) if few else self._codec.decode(token_ids))


@dataclass(frozen=True)
class StopStrings:
    """The stop strings of a sequence. They may span tokens and rounds; only the output's end is decoded."""

    codec: Decodes
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
