"""DraftIds: a row's text in the tokens of its draft, and the draft's logits over the target's ids.

Where the two have one tokenizer, the ids are the same, and either may lack the last ones. A draft with another
tokenizer reads the text in its own tokens, and drafts common ones: its logits move to the target's ids of the same
tokens, and the tokens that it lacks have -inf. The noise belongs to the target's ids, so both share it as ever.

Shapes: J positions, V token ids of the target, D those of the draft.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from decoding.common_prefix import common_prefix
from decoding.device import to_device
from decoding.sequence import Sequence
from decoding.vocabulary.vocabulary_map import VocabularyMap

_LOOK_BACK = 16  # tokens of the draft that are written anew with new text; the text before them has no part in it


def fitted(logits_JD: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the logits [..., V] of `vocab_size` ids, of which those that the draft lacks have -inf."""
    num_missing = vocab_size - logits_JD.shape[-1]
    if num_missing > 0:
        return torch.nn.functional.pad(logits_JD, (0, num_missing), value=float("-inf"))
    return logits_JD[..., :vocab_size]  # `pad` would copy them all


class DraftIds:
    """The target's own ids. Ids that the draft lacks are read as 0, and those that the target lacks are not drawn."""

    is_mapped = False  # whether the draft has other tokens; the last one of a text may then change as it grows

    def __init__(self, vocab_size: int, draft_size: int) -> None:
        self._vocab_size, self._draft_size = vocab_size, draft_size

    def begin(self, slot: int, donor: int | None, num_shared: int) -> int:
        """Begin with another row in a slot, and return how many positions of the donor's slot it may copy."""
        return num_shared

    def swap(self, first: int, second: int) -> None:
        """Exchange what is known of two slots."""

    def num_right(self, slot: int, sequence: Sequence, num_known: int) -> int:
        """Return how many positions of a slot are right if the `num_known` first ones were before the last round.

        From the newest token on the cache holds the draft's own guess. This must be forgotten in a round without a
        draft, too: the next round would take the guess for the committed token.
        """
        return len(sequence) - 1

    def read(self, slot: int, token_ids: Seq[int], num_known: int, *, is_needed: bool = True) -> tuple[Seq[int], int]:
        """Return a row's text in the draft's tokens, and how many of the `num_known` ones in the slot it begins with.

        The text is empty if the draft cannot write it. Unless it `is_needed`, it may end before what is new.
        """
        return token_ids, num_known

    def known(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the draft's ids of drafted tokens."""
        return torch.where(token_ids < self._draft_size, token_ids, 0)

    def to_target(self, logits_JD: torch.Tensor) -> torch.Tensor:
        """Return the logits [..., V] of the target's ids; those that the draft lacks cannot be drawn."""
        return fitted(logits_JD, self._vocab_size)


class RetokenizedText:
    """The draft's tokens of one row. They write the same text as the target's, whatever the steps it came in.

    New text changes the last tokens before it ("Hel" and "lo" become "Hello"), and no others: so the last ones are
    written anew with it, and the row's earlier tokens stay.

    A tokenizer that begins each text with a space may put further ones behind bytes that are no characters.
    """

    def __init__(self, vocabulary: VocabularyMap) -> None:
        self._vocabulary = vocabulary
        self._written = bytearray()
        self._ends: list[int] = []  # where each token ends in what is written
        self.token_ids: list[int] = []  # of the draft
        self.num_read = 0  # tokens of the target
        self.can_be_read = True  # whether the draft has tokens for all of the text

    def extend(self, token_ids: list[int]) -> int:
        """Append what further tokens of the target write; return how many of the draft's earlier tokens stay."""
        self.num_read += len(token_ids)
        added = self._vocabulary.written(token_ids)
        if added is None:
            self.can_be_read = False
            return 0
        self._written += added
        kept = max(0, len(self.token_ids) - _LOOK_BACK)
        first = self._ends[kept - 1] if kept else 0
        found = self._vocabulary.draft_tokens(bytes(self._written[first:]))
        if found is None:
            self.can_be_read = False
            return 0
        tokens, ends = found[0], [first + end for end in found[1]]
        if kept:
            num_stay, num_dropped = self._common_boundary(self._ends[kept:], ends)
            kept, tokens, ends = kept + num_stay, tokens[num_dropped:], ends[num_dropped:]
        elif tokens[:1] != self._vocabulary.first_ids:
            first_ids = self._vocabulary.first_ids
            tokens, ends = [*first_ids, *tokens], [0] * len(first_ids) + ends
        self.token_ids[kept:], self._ends[kept:] = tokens, ends
        return kept

    @staticmethod
    def _common_boundary(before: list[int], after: list[int]) -> tuple[int, int]:
        """Return how many tokens of each list there are up to a place where a token ends in both.

        The first such place in the latter half is taken, since tokens at the beginning may miss what stood before them;
        without one the last in the first half.
        """
        numbers = {end: number for number, end in enumerate(after, start=1)}  # of several that end there, the last
        earlier = {end: number for number, end in enumerate(before, start=1)}
        found = [(number, numbers[end]) for end, number in earlier.items() if end in numbers]
        late = [pair for pair in found if pair[0] >= _LOOK_BACK // 2]
        return late[0] if late else found[-1] if found else (0, 0)


@dataclass
class _Row:
    """What is in a slot of the draft."""

    text: RetokenizedText
    written: list[int] = field(default_factory=list)  # the draft's tokens whose keys and values are in the slot


class MappedIds(DraftIds):
    """The tokens of another tokenizer. Of the last round's guesses behind a text those that were accepted are right."""

    is_mapped = True

    def __init__(self, vocabulary: VocabularyMap, device: torch.device) -> None:
        self._map = vocabulary
        self._draft_ids_V = to_device(vocabulary.draft_ids_V, device, torch.int64)
        self._rows: dict[int, _Row] = {}  # by slot

    def begin(self, slot: int, donor: int | None, num_shared: int) -> int:
        """Take all tokens of the donor; which of them the new row has is known when its text is read."""
        written = [] if donor is None else list(self._row(donor).written)
        self._rows[slot] = _Row(RetokenizedText(self._map), written)
        return len(written)

    def swap(self, first: int, second: int) -> None:
        self._rows[first], self._rows[second] = self._row(second), self._row(first)

    def num_right(self, slot: int, sequence: Sequence, num_known: int) -> int:
        row = self._row(slot)
        num_guesses = num_known - len(row.written)
        if num_guesses > 0:  # the round's last token was no guess
            accepted = sequence.token_ids[row.text.num_read : -1][:num_guesses]
            row.written += [self._map.draft_ids_V[token_id] for token_id in accepted]
        return len(row.written)

    def read(self, slot: int, token_ids: Seq[int], num_known: int, *, is_needed: bool = True) -> tuple[Seq[int], int]:
        row = self._row(slot)
        if not is_needed:
            return row.written[:num_known], num_known
        if new := list(token_ids[row.text.num_read :]):
            row.text.extend(new)
        before, row.written = row.written[:num_known], list(row.text.token_ids) if row.text.can_be_read else []
        return row.written, common_prefix(row.written, before)

    def known(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._draft_ids_V[token_ids].clamp(min=0)

    def to_target(self, logits_JD: torch.Tensor) -> torch.Tensor:
        logits_JV = logits_JD.index_select(-1, self._draft_ids_V.clamp(min=0))
        return logits_JV.masked_fill_(self._draft_ids_V < 0, float("-inf"))

    def _row(self, slot: int) -> _Row:
        return self._rows.setdefault(slot, _Row(RetokenizedText(self._map)))
