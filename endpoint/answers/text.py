"""The text of a sample: shown as its tokens arrive, or once it has ended.

A stream shows nothing that later tokens may change, and nothing of a stop string.
"""

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

from actors.engine.deltas import Ending
from actors.engine.translation import ended_text
from pipeline.logs import Event
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import HALF_CHARACTER, IncrementalDecoder

_log = logging.getLogger(__name__)


class Span(NamedTuple):
    """Part of a text: accepted tokens of a draft, or tokens of the target. It may be empty where a draft is shown."""

    text: str
    is_drafted: bool
    rejected: str = ""  # the rest of the draft, which the target has replaced by this text


@dataclass(frozen=True)
class Piece:
    """Text that may be shown now."""

    text: str
    spans: tuple[Span, ...]  # the same text in parts
    offsets: tuple[int, ...]  # where in the whole text each of the new tokens begins, or the run of bytes it is in


class TextStream:
    """The tokens of a sample, and its text in pieces, which join to `actors.engine.translation.ended_text` of all."""

    def __init__(
        self,
        codec: TextCodec,
        stop: tuple[str, ...] = (),
        prompt_token_ids: Seq[int] = (),
        *,
        by_token: bool = True,
        is_streamed: bool = True,
        keeps_stop: bool = False,
        shows_rejected: bool = False,
    ) -> None:
        """Hold back text that may begin one of the `stop` strings until that is decided.

        Unless it `is_streamed`, the whole text is decoded once, when the sample has ended. The stop string or end token
        that ended the sample is shown if `keeps_stop`.

        Spans and offsets are right only `by_token`; otherwise tokens that arrive together are decoded together. Text
        that several tokens spell together counts as drafted if the last of them was. With `shows_rejected` spans have
        the text of rejected drafts, if the rules of the tokenizer are known.
        """
        self.token_ids: list[int] = []
        self.text = ""  # shown so far
        self._codec, self._stop, self._prompt, self._keeps_stop = codec, stop, prompt_token_ids, keeps_stop
        self._by_token, self._is_streamed = by_token, is_streamed
        self._decoder = IncrementalDecoder(codec, prompt_token_ids if is_streamed else ())
        self._shows_rejected = shows_rejected and by_token and codec.decoder_rules.is_steady
        self._held: list[Span] = []  # decoded, not shown yet
        self._num_characters = 0  # decoded
        self._is_drafted = False  # the newest token

    def push(
        self, token_ids: Seq[int], num_accepted: int = 0, ending: Ending | None = None, rejected: Seq[int] = ()
    ) -> Piece:
        """Add tokens, the first `num_accepted` of which were drafted; return the text that can be shown now.

        The last of them stands where the draft went on with the `rejected` ones.
        """
        offsets = []
        if not self._by_token and self._is_streamed and token_ids:
            self._hold(self._decoder.push(token_ids), False)
        for position, token_id in enumerate(token_ids if self._by_token and self._is_streamed else ()):
            instead = ""
            if rejected and self._shows_rejected and position == len(token_ids) - 1:
                instead = self._decoder.preview(rejected)
            earlier, own = self._decoder.push_one(token_id)
            self._hold(earlier, self._is_drafted)
            offsets.append(self._num_characters)
            self._is_drafted = position < num_accepted
            self._hold(own, self._is_drafted, instead)
        self.token_ids += token_ids
        if ending is None:
            return self._show(sum(len(span.text) for span in self._held) - self._num_undecided(), tuple(offsets))
        tokens, reasons = (self._prompt, self.token_ids), (ending.finish_reason, ending.stop_reason)
        whole = ended_text(self._codec, *tokens, self._stop, *reasons, keeps_stop=self._keeps_stop)
        assert whole.startswith(self.text), "shown text never changes"
        rest = whole[len(self.text) :]
        decoded = "".join(span.text for span in self._held)
        if rest.startswith(decoded):  # and the characters that waited for more bytes
            self._hold(rest[len(decoded) :], self._is_drafted)
        elif not decoded.startswith(rest):
            self._held = [Span(rest, False)]
        return self._show(len(rest), tuple(offsets))

    def _hold(self, text: str, is_drafted: bool, rejected: str = "") -> None:
        self._num_characters += len(text)
        if not text and not rejected:
            return
        last = self._held[-1] if self._held else None
        if last is not None and last.is_drafted == is_drafted and not rejected:
            self._held[-1] = last._replace(text=last.text + text)
        else:
            self._held.append(Span(text, is_drafted, rejected))

    def _num_undecided(self) -> int:
        """Count the characters at the end that may begin a stop string.

        All U+FFFD at the end count: `StopStrings` searches for them only where other text follows.
        """
        if not self._stop:
            return 0
        held = "".join(span.text for span in self._held)
        text = held.rstrip(HALF_CHARACTER)
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest + len(held) - len(text)

    def _show(self, num_characters: int, offsets: tuple[int, ...]) -> Piece:
        shown: list[Span] = []
        while self._held and (num_characters > 0 or not self._held[0].text):
            span = self._held.pop(0)
            if len(span.text) > num_characters:
                self._held.insert(0, Span(span.text[num_characters:], span.is_drafted))
                span = span._replace(text=span.text[:num_characters])
            shown.append(span)
            num_characters -= len(span.text)
        text = "".join(span.text for span in shown)
        self.text += text
        return Piece(text, tuple(shown), offsets)


def warn_of_late_text(codec: TextCodec) -> None:
    """Log a warning for a tokenizer whose streams bring all text with their last chunk."""
    if not codec.decoder_rules.is_steady:
        _log.warning(Event("streamed text comes at the end", tokenizer=type(codec.tokenizer).__name__))
