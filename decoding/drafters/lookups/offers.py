"""What a lookup offers a row, and drafters that propose it: point masses, with the chance of each to be accepted.

A prediction of a row's text is offered wherever it promises more than what is looked up.
"""

from abc import abstractmethod
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from decoding.drafters.base import Drafter, allowed_part, point_masses, swap_entries
from decoding.drafters.lookups.known_texts import Calibration
from decoding.drafters.lookups.prediction import Prediction
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

# The assumed chance that a predicted token is accepted before any was tried, by the bits of the number of tokens since
# the last difference; the last one holds for all longer stretches. And where there was no difference:
_GUESSES_OF_PREDICTIONS = (0.4, 0.6, 0.75, 0.8, 0.85, 0.9)
_UNCHANGED = 0.9  # a first draft that is too long costs more than one that is too short
_MOST_OF_PREDICTIONS = 0.998  # no estimate is higher: drafts of a text that is only checked are long


@dataclass
class Offer:
    """What a lookup found: tokens, the kind of match of each, the chance that all up to it are accepted."""

    tokens: list[int] = field(default_factory=list)
    kinds: list[Hashable] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)


class LookupDrafter(Drafter):
    """Proposes what is offered to each row."""

    reads_late = True

    def __init__(self) -> None:
        self._predictions: dict[int, Prediction] = {}  # of the rows that have one

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        for slot, sequence in zip(slots, sequences, strict=True):
            self._predictions.pop(slot, None)
            if sequence.prediction:
                self._predictions[slot] = Prediction(sequence.prediction)

    def swap(self, first: int, second: int) -> None:
        swap_entries(self._predictions, first, second)

    def _predicted(self, slot: int, sequence: Sequence, limit: int, calibration: Calibration) -> Offer:
        """Return what the prediction of the row in this slot offers: nothing without one."""
        prediction = self._predictions.get(slot)
        if prediction is None:
            return Offer()
        prediction.read(sequence.output_token_ids)
        tokens = allowed_part(sequence, prediction.expected(limit))
        kinds: list[Hashable] = []
        rates: list[float] = []
        most = len(_GUESSES_OF_PREDICTIONS) - 1
        for number in range(len(tokens)):
            agreeing = prediction.num_agreeing
            bits = None if agreeing is None else min((agreeing + number).bit_length(), most)
            if kinds and kinds[-1] == ("predicted", bits):
                kinds.append(kinds[-1])
                rates.append(rates[-1])
                continue
            kinds.append(("predicted", bits))
            guess = _UNCHANGED if bits is None else _GUESSES_OF_PREDICTIONS[bits]
            rates.append(calibration.rate(kinds[-1], guess, _MOST_OF_PREDICTIONS))
        return Offer(tokens, kinds, list(accumulate(rates, mul)))

    @abstractmethod
    def _offers(self, rows: Rows) -> list[Offer]:
        """Return what each row is offered, at least as many tokens as it may draft if as many are found."""

    def lookup_survival(self, rows: Rows) -> list[list[float]]:
        offers = self._offers(rows)
        return [offer.survival[:limit] for offer, limit in zip(offers, rows.num_draft_tokens, strict=True)]

    def without_model(self, rows: Rows) -> list[list[int]]:
        return [offer.tokens[:limit] for offer, limit in zip(self._offers(rows), rows.num_draft_tokens, strict=True)]

    def propose(self, rows: Rows) -> Draft:
        return point_masses(self.without_model(rows), rows.sampling.keys_B.device)


def better(first: Offer, second: Offer) -> Offer:
    """Return the offer of which more tokens are expected to be accepted."""
    return first if sum(first.survival) > sum(second.survival) else second
