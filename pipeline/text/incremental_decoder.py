"""Tokens to text as they come."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.text.codec import TextCodec

HALF_CHARACTER = "\ufffd"  # what a tokenizer writes for bytes that are no character (yet)


class IncrementalDecoder:
    """Text as tokens arrive: the pieces joined are the text of all tokens, however they are split into pushes.

    What later tokens may still change is held back: half a character, and bytes that are read together with those to
    come (`DecoderRules`). Of a tokenizer whose ways are not known all is. Of several U+FFFD at the end of a text only
    the last one can become a character, so no more than that one is held, and what is decoded again stays short.

    A token's text may depend on the one before it (a leading space that only the first word loses), so new
    tokens are decoded together with the last ones that brought text, and what those say by themselves is
    taken off.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._rules = codec.decoder_rules
        self._token_ids: list[int] = []
        self._context_start = 0  # tokens [context_start, emitted_end) are decoded again as context
        self._emitted_end = 0  # the text of tokens [0, emitted_end) is out,
        self._num_held = 0  # but for so many U+FFFD at its end: none or one

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens settle; "" while a character is still in the making."""
        self._token_ids += token_ids
        num_unsettled = 0
        while num_unsettled < len(token_ids) and not self._settles(token_ids[-1 - num_unsettled]):
            num_unsettled += 1
        if num_unsettled == len(token_ids):
            return ""
        return "".join(self._emit(len(self._token_ids) - num_unsettled, self._emitted_end))

    def push_one(self, token_id: int) -> tuple[str, str]:
        """As `push`: what tokens before this one say, which it settles, and what itself says or makes whole."""
        self._token_ids.append(token_id)
        if not self._settles(token_id):
            return "", ""
        return self._emit(len(self._token_ids), len(self._token_ids) - 1)

    def flush(self) -> str:
        """The rest, once no token will follow: U+FFFD for characters that were never completed."""
        return "".join(self._emit(len(self._token_ids), self._emitted_end, is_over=True))

    def _settles(self, token_id: int) -> bool:
        return self._rules.is_steady and self._rules.settles(token_id)

    def _emit(self, end: int, new: int, *, is_over: bool = False) -> tuple[str, str]:
        """What is not out yet of the tokens before `new`, and of those in [new, end)."""
        start = self._context_start
        before = self._decode(start, self._emitted_end)
        num_out, num_held = len(before) - self._num_held, 0
        if new > self._emitted_end:
            before = self._decode(start, new)
        text = self._decode(start, end)
        if text.endswith(HALF_CHARACTER) and not is_over:
            num_held = 1
        # A character that is split between them is two of U+FFFD or more apart, and one together.
        is_split = before.endswith(HALF_CHARACTER) and len(text) < len(before) + len(self._decode(new, end))
        middle = max(num_out, len(before) - is_split)
        if not is_split and len(text) > len(before):  # tokens without text, such as special ones, are no context
            self._context_start = new
        self._emitted_end, self._num_held = end, num_held
        shown = text[: len(text) - num_held]
        return shown[num_out:middle], shown[middle:]

    def _decode(self, start: int, end: int) -> str:
        return self._codec.decode(self._token_ids[start:end])
