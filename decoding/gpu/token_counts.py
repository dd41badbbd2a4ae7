"""TokenCounts: how often each running row's text has each token, kept on the device for the penalties.

A row's counts are computed from its whole text once, when it is first seen. After that each round adds the few tokens
that were committed to it. Counts belong to a Sequence, whatever slot it stands in, and drafted tokens are not part of
them; so swaps, rejected drafts and evictions change nothing here. A row that lost its place is counted anew.

Shapes: R rows of the table, B rows of a batch, V vocabulary.
"""

from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from decoding.device import to_device
from decoding.gpu.picks import Counted
from decoding.sequence import Sequence

_OUTPUT, _PROMPT = 2, 1  # what an occurrence adds to a count; the prompt's tokens are marked, not counted


@dataclass
class _Place:
    row: int
    num_counted: int  # tokens of the sequence, prompt and output


class TokenCounts:
    """The counts of at most `num_rows` sequences."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        """Remember the size; the table takes memory (4 bytes x rows x vocabulary) when a row first has penalties."""
        self._num_rows, self._device = num_rows, device
        self._counts_RV: torch.Tensor | None = None
        self._places: OrderedDict[Sequence, _Place] = OrderedDict()  # the most recently used at the end

    def of(self, sequences: Seq[Sequence], is_counted: Seq[bool], vocab_size: int) -> Counted:
        """Return the counts of the sequences' tokens up to now; of those that are not counted, any row.

        The table is always the same tensor.
        """
        if self._counts_RV is None:
            self._counts_RV = torch.zeros(self._num_rows, vocab_size, dtype=torch.int32, device=self._device)
        assert self._counts_RV.shape[1] == vocab_size, "all logits are fitted to the target's vocabulary"
        counted = [sequence for sequence, is_it in zip(sequences, is_counted, strict=True) if is_it]
        assert len(set(counted)) <= self._num_rows, "there are as many rows as slots"
        for sequence in counted:
            if sequence in self._places:
                self._places.move_to_end(sequence)
        fresh: list[int] = []
        cells: list[int] = []
        amounts: list[int] = []
        for sequence in counted:
            place = self._places.get(sequence)
            if place is None:
                place = self._places[sequence] = _Place(self._free_row(), len(sequence.prompt_token_ids))
                fresh.append(place.row)
                prompt = set(sequence.token_ids[: place.num_counted])
                cells += [place.row * vocab_size + token_id for token_id in prompt]
                amounts += [_PROMPT] * len(prompt)
            added = sequence.token_ids[place.num_counted :]
            place.num_counted += len(added)
            cells += [place.row * vocab_size + token_id for token_id in added]
            amounts += [_OUTPUT] * len(added)
        if fresh:
            self._counts_RV.index_fill_(0, to_device(fresh, self._device), 0)
        if cells:
            cells_and_amounts_2C = to_device([cells, amounts], self._device, torch.int64)
            self._counts_RV.view(-1).scatter_add_(0, cells_and_amounts_2C[0], cells_and_amounts_2C[1].int())
        rows = [self._places[sequence].row if sequence in self._places else 0 for sequence in sequences]
        return Counted(self._counts_RV, to_device(rows, self._device, torch.int64))

    def _free_row(self) -> int:
        """Return a row that no sequence has, at last that of the sequence that was not used for longest."""
        if len(self._places) < self._num_rows:
            return len(self._places)
        return self._places.popitem(last=False)[1].row
