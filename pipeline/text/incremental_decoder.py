"""A decoder that turns tokens into text while they arrive."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import HALF_CHARACTER, TextBehind

_FEW = 2  # tokens whose text is kept: a token and the one before it


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

    def __init__(self, codec: TextCodec, prompt_token_ids: Sequence[int] = ()) -> None:
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
        known, text = codec.decode(before), codec.decode([*before, *token_ids])
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
        return self._codec.decode_few(tuple(token_ids)) if len(token_ids) <= _FEW else self._codec.decode(token_ids)
