"""A prediction of a row's text, known to that row alone, as when a text is written again.

It is proposed as far as the text goes with it, and from the place on where both meet again. (Predicted outputs:
https://platform.openai.com/docs/guides/predicted-outputs)
"""

from collections.abc import Sequence as Seq

from decoding.choices import Verification
from decoding.common_prefix import common_prefix
from decoding.sampling.rules import RULES
from decoding.sequence import Sequence

_LONGEST_MATCH = 8  # tokens up to a place that are compared
_MOST_PLACES = 64  # where a token stands that are compared, the nearest ones


class Prediction:
    """A guess of a whole text, and where the text stands in it.

    A token that differs is looked for in the guess: of the places where it stands, the one behind most equal tokens is
    taken, and of equally good ones the nearest. If it stands nowhere, it has taken the place of the one expected.
    """

    def __init__(self, token_ids: Seq[int]) -> None:
        """Begin with no text."""
        self._tokens = list(token_ids)
        self._place = self._num_read = 0  # of the token that is expected next, and tokens of the text
        self._places = dict[int, list[int]]()  # where each token stands; made at the first difference
        self.num_right = 0  # tokens of the text that were expected
        self.num_agreeing: int | None = None  # tokens since the last difference; None: there was none

    def read(self, text: Seq[int]) -> None:
        """Go on along a text, which may have grown since it was read last."""
        while self._num_read < len(text):
            num_same = common_prefix(text[self._num_read :], self.expected(len(text) - self._num_read))
            self._place += num_same
            self._num_read += num_same
            self.num_right += num_same
            if self.num_agreeing is not None:
                self.num_agreeing += num_same
            if self._num_read < len(text):
                self._num_read += 1
                newest = text[max(0, self._num_read - _LONGEST_MATCH) : self._num_read]
                self._place, self.num_agreeing = self._found(newest)

    def expected(self, limit: int) -> list[int]:
        """Return the next tokens of the guess, at most `limit`."""
        return self._tokens[self._place : self._place + limit]

    def _found(self, newest: Seq[int]) -> tuple[int, int]:
        """Return the place behind the newest tokens, and how many of them stand before it."""
        if not self._places:
            for place, token in enumerate(self._tokens):
                self._places.setdefault(token, []).append(place)
        best = self._place + 1, 0
        near = sorted(self._places.get(newest[-1], []), key=lambda place: abs(place - self._place))
        for place in near[:_MOST_PLACES]:
            length = 1
            while length < len(newest) and length <= place and self._tokens[place - length] == newest[-1 - length]:
                length += 1
            if length > best[1]:
                best = place + 1, length
        return best


def problem_under(verification: Verification, sequence: Sequence) -> str | None:
    """Return why a row may not have the prediction that it has where drafts are verified so."""
    if not sequence.prediction or not RULES[verification].text_depends_on_draft:
        return None
    return (
        f"the row has a prediction of its text, but engine.verification is {verification!r}: a text that was written "
        "with the row's own noise would change the distribution of what follows; use 'coupled'"
    )
