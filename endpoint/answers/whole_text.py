"""WholeText: a sample's text for whoever wants it when it is done, decoded once and as the offline job decodes it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from actors.engine.deltas import Ending
from actors.engine.translation import output_text
from endpoint.answers.text import Piece
from pipeline.text.codec import TextCodec

_NOTHING = Piece("", (), ())


class WholeText:
    """Has the same face as a `TextStream`, shows nothing on the way, and costs nothing there."""

    def __init__(self, codec: TextCodec, stop: tuple[str, ...] = ()) -> None:
        self.token_ids: list[int] = []
        self.text = ""  # until the sample has ended
        self._codec, self._stop = codec, stop

    def push(self, token_ids: Seq[int], num_accepted: int = 0, ending: Ending | None = None) -> Piece:
        """Take these tokens; the text is there if the sample has ended."""
        self.token_ids += token_ids
        if ending is not None:
            self.text = output_text(self._codec, self.token_ids, self._stop, ending.stop_reason)
        return _NOTHING
