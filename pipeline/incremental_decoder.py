"""Tokens to text as they come."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.text import TextCodec

HALF_CHARACTER = "\ufffd"  # what a tokenizer writes for bytes that are no character (yet)


class IncrementalDecoder:
    """Text as tokens arrive: the pieces joined are the text of all tokens, however they are split into pushes.

    What later tokens may still change is held back: half a character, and bytes that are read together with those to
    come (`DecoderRules`). Of a tokenizer whose ways are not known all is.

    A token's text may depend on the one before it (a leading space that only the first word loses), so new
    tokens are decoded together with the last ones that brought text, and what those say by themselves is
    taken off.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._rules = codec.decoder_rules
        self._token_ids: list[int] = []
        self._context_start = 0  # tokens [context_start, emitted_end) are decoded again as context
        self._emitted_end = 0  # the text of tokens [0, emitted_end) is out

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens settle; "" while a character is still in the making."""
        self._token_ids += token_ids
        if not self._rules.is_steady:
            return ""
        num_unsettled = 0
        while num_unsettled < len(token_ids) and not self._rules.settles(token_ids[-1 - num_unsettled]):
            num_unsettled += 1
        if num_unsettled == len(token_ids):
            return ""
        return self._emit(len(self._token_ids) - num_unsettled, hold_half=True)

    def flush(self) -> str:
        """The rest, once no token will follow: U+FFFD for characters that were never completed."""
        return self._emit(len(self._token_ids), hold_half=False)

    def _emit(self, end: int, hold_half: bool) -> str:
        context = self._codec.decode(self._token_ids[self._context_start : self._emitted_end])
        text = self._codec.decode(self._token_ids[self._context_start : end])
        if hold_half and text.endswith(HALF_CHARACTER):
            return ""
        new_text = text[len(context) :]
        if new_text:  # tokens without text, such as special ones, are no context
            self._context_start = self._emitted_end
        self._emitted_end = end
        return new_text
