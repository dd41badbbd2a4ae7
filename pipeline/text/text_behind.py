"""The text that tokens have behind a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pipeline.text.tokenizer.decoder_rules import DecoderRules

HALF_CHARACTER = "\ufffd"  # a tokenizer writes it for bytes that are not (yet) a character
_FEWEST = 4  # tokens of context


class Decodes(Protocol):
    """What turns tokens into text: a `TextCodec`."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, as a text of its own."""

    @property
    def decoder_rules(self) -> DecoderRules:
        """The rules by which a token settles the text so far."""

    @property
    def a_letter(self) -> list[int]:
        """Tokens of a text that is one letter."""


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
        return self.codec.a_letter

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens right behind the prompt."""
        return self.codec.decode([*self.context, *token_ids])[self._num_before :]

    @cached_property
    def _num_before(self) -> int:
        return len(self.codec.decode(self.context))

    def _text(self, start: int, end: int) -> str:
        return self.codec.decode(self.prompt_token_ids[start:end])
