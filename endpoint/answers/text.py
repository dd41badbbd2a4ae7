"""The text of a sample: shown as its tokens arrive (TextStream), or once it has ended (WholeText).

A stream shows nothing that later tokens may change, and nothing of a stop string.
"""

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
    """Text that may be shown now."""

    text: str
    spans: tuple[tuple[str, bool], ...]  # the same text in parts, each with whether it was drafted
    offsets: tuple[int, ...]  # where in the whole text each of the new tokens begins, or the run of bytes it is in


_NOTHING = Piece("", (), ())


class TextStream:
    """Text in pieces, which join to what `actors.engine.translation.output_text` returns for all tokens."""

    def __init__(
        self, codec: TextCodec, stop: tuple[str, ...] = (), *, by_token: bool = True, keeps_stop: bool = False
    ) -> None:
        """Hold back text that may begin one of the `stop` strings until that is decided.

        Spans and offsets are right only `by_token`; otherwise tokens that arrive together are decoded together. Text
        that several tokens spell together counts as drafted if the last of them was. With `keeps_stop` the stop string
        or end token that ended the sample is shown.
        """
        self.token_ids: list[int] = []
        self.text = ""  # shown so far
        self._codec, self._stop, self._by_token, self._keeps_stop = codec, stop, by_token, keeps_stop
        self._decoder = IncrementalDecoder(codec)
        self._held: list[tuple[str, bool]] = []  # decoded, not shown yet
        self._num_characters = 0  # decoded
        self._is_drafted = False  # the newest token

    def push(self, token_ids: Seq[int], num_accepted: int = 0, ending: Ending | None = None) -> Piece:
        """Add tokens, the first `num_accepted` of which were drafted; return the text that can be shown now."""
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
        whole = _whole(self._codec, self.token_ids, self._stop, ending, self._keeps_stop)
        assert whole.startswith(self.text), "shown text never changes"
        rest = whole[len(self.text) :]
        decoded = "".join(text for text, _ in self._held)
        if rest.startswith(decoded):  # and the characters that waited for more bytes
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
        """Count the characters at the end that may begin a stop string.

        All U+FFFD at the end count: `StopStrings` searches for them only where other text follows.
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


class WholeText:
    """Text that is decoded once, as the offline job decodes it; until the sample ends nothing is shown.

    It has the interface of a TextStream.
    """

    def __init__(self, codec: TextCodec, stop: tuple[str, ...] = (), *, keeps_stop: bool = False) -> None:
        self.token_ids: list[int] = []
        self.text = ""  # until the sample has ended
        self._codec, self._stop, self._keeps_stop = codec, stop, keeps_stop

    def push(self, token_ids: Seq[int], num_accepted: int = 0, ending: Ending | None = None) -> Piece:
        """Add tokens; decode all of them if the sample has ended."""
        self.token_ids += token_ids
        if ending is not None:
            self.text = _whole(self._codec, self.token_ids, self._stop, ending, self._keeps_stop)
        return _NOTHING


def _whole(codec: TextCodec, token_ids: Seq[int], stop: tuple[str, ...], ending: Ending, keeps_stop: bool) -> str:
    """Return the text of a sample that has ended; a text that shows special tokens does not show the end token."""
    is_by_token = ending.finish_reason == "stop" and not isinstance(ending.stop_reason, str)
    if is_by_token and not keeps_stop and token_ids and token_ids[-1] in codec.shown_ids:
        token_ids = token_ids[:-1]
    return output_text(codec, token_ids, stop, ending.stop_reason, keeps_stop=keeps_stop)


def warn_of_late_text(codec: TextCodec) -> None:
    """Log a warning for a tokenizer whose streams bring all text with their last chunk."""
    if not codec.decoder_rules.is_steady:
        _log.warning(Event("streamed text comes at the end", tokenizer=type(codec.tokenizer).__name__))
