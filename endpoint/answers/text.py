"""TextStream: a sample's text as its tokens come. Nothing that later tokens may change, nothing of a stop string."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from actors.engine.deltas import Ending
from actors.engine.translation import output_text
from pipeline.logs import Event
from pipeline.text.codec import TextCodec
from pipeline.text.incremental_decoder import HALF_CHARACTER, IncrementalDecoder

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """What may be shown now."""

    text: str
    spans: tuple[tuple[str, bool], ...]  # the same text, in parts: whether a part was drafted
    offsets: tuple[int, ...]  # where in the whole text each of the new tokens begins, or the run of bytes it is in


class TextStream:
    """The pieces joined are what `actors.engine.translation.output_text` says of all tokens."""

    def __init__(self, codec: TextCodec, stop: tuple[str, ...] = (), *, by_token: bool = True) -> None:
        """Text that may be the beginning of one of these strings is held back until that is known.

        Spans and offsets mean something only `by_token`; without, what comes together is decoded together. What several
        tokens spell together counts as drafted if the last of them was.
        """
        self.token_ids: list[int] = []
        self.text = ""  # what was shown
        self._codec, self._stop, self._by_token = codec, stop, by_token
        self._decoder = IncrementalDecoder(codec)
        self._held: list[tuple[str, bool]] = []  # decoded, not shown yet
        self._num_characters = 0  # decoded
        self._is_drafted = False  # the newest token

    def push(self, token_ids: Seq[int], num_accepted: int = 0, ending: Ending | None = None) -> Piece:
        """What these tokens, the first of which were drafted, bring to show; all the rest if the sample has ended."""
        offsets = []
        if not self._by_token and token_ids:
            self._hold(self._decoder.push(token_ids), False)
        for position, token_id in enumerate(token_ids if self._by_token else ()):
            earlier, own = self._decoder.push_one(token_id)
            self._hold(earlier, self._is_drafted)
            offsets.append(self._num_characters)
            self._is_drafted = position < num_accepted
            self._hold(own, self._is_drafted)
        self.token_ids += token_ids
        if ending is None:
            return self._show(sum(len(text) for text, _ in self._held) - self._num_undecided(), tuple(offsets))
        whole = output_text(self._codec, self.token_ids, self._stop, ending.stop_reason)
        assert whole.startswith(self.text), "what is settled stays"
        rest = whole[len(self.text) :]
        decoded = "".join(text for text, _ in self._held)
        if rest.startswith(decoded):  # and what was held back for want of tokens behind it
            self._hold(rest[len(decoded) :], self._is_drafted)
        elif not decoded.startswith(rest):
            self._held = [(rest, False)]
        return self._show(len(rest), tuple(offsets))

    def _hold(self, text: str, is_drafted: bool) -> None:
        self._num_characters += len(text)
        if not text:
            return
        if self._held and self._held[-1][1] == is_drafted:
            self._held[-1] = (self._held[-1][0] + text, is_drafted)
        else:
            self._held.append((text, is_drafted))

    def _num_undecided(self) -> int:
        """Characters at the end that a stop string may begin with.

        Any of U+FFFD may: `StopStrings` looks for those only where the text goes on behind them.
        """
        if not self._stop:
            return 0
        held = "".join(text for text, _ in self._held)
        text = held.rstrip(HALF_CHARACTER)
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest + len(held) - len(text)

    def _show(self, num_characters: int, offsets: tuple[int, ...]) -> Piece:
        shown: list[tuple[str, bool]] = []
        while num_characters > 0 and self._held:
            text, is_drafted = self._held.pop(0)
            if len(text) > num_characters:
                self._held.insert(0, (text[num_characters:], is_drafted))
                text = text[:num_characters]
            shown.append((text, is_drafted))
            num_characters -= len(text)
        text = "".join(text for text, _ in shown)
        self.text += text
        return Piece(text, tuple(shown), offsets)


def warn_of_late_text(codec: TextCodec) -> None:
    """Log it where a stream of this tokenizer's brings its text with its last chunk. Once, when it is loaded."""
    if not codec.decoder_rules.is_steady:
        _log.warning(Event("streamed text comes at the end", tokenizer=type(codec.tokenizer).__name__))
