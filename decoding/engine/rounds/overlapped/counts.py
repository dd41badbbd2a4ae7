"""SlotCounts: how often the text of the row in each slot has each token, for penalties, kept on the device by rounds.

Counts are integers, so they are the same in whatever order tokens are added.

Shapes: B rows (row b is in slot b), J positions of a round, S slots, V vocabulary.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.device import to_device
from decoding.engine.rounds.overlapped.steps import RowsNow
from decoding.gpu.pick_table import Column
from decoding.gpu.picks import Counted
from decoding.sampling.token_history import OUTPUT, changes
from decoding.sequence import Sequence


class SlotCounts:
    """The counts of all slots. They take memory (4 bytes x slots x vocabulary) once a row has penalties."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._sizes, self._device = (num_slots, vocab_size), device
        self._counts_SV: torch.Tensor | None = None
        # By slot: the row of which the device has the counts, and its length, when all rounds have been read.
        self._counted: dict[int, tuple[Sequence, int]] = {}

    def bring(self, rows: Seq[tuple[int, Sequence]]) -> None:
        """Count the texts of these slots and rows that have penalties, unless the device has their counts."""
        if self._counts_SV is None:
            self._counts_SV = torch.zeros(self._sizes, dtype=torch.int32, device=self._device)
        slots, cells, amounts = list[int](), list[int](), list[int]()
        for slot, row in rows:
            if row.params.uses_token_counts and self._counted.get(slot) != (row, len(row)):
                own = changes(slot, row.prompt_token_ids, row.output_token_ids, self._sizes[1])
                slots.append(slot)
                cells += own[0]
                amounts += own[1]
        if slots:
            self._counts_SV.index_fill_(0, to_device(slots, self._device), 0)
            cells_and_amounts_2C = to_device([cells, amounts], self._device, torch.int64)
            self._counts_SV.view(-1).scatter_add_(0, cells_and_amounts_2C[0], cells_and_amounts_2C[1].int())

    def of(self, rows: RowsNow) -> Counted:
        """Return the counts of these rows, as the kernels of a pick read them."""
        assert self._counts_SV is not None, "`bring` comes first"
        return Counted(self._counts_SV, rows.index_B)

    def add(self, rows: RowsNow, columns_BC: torch.Tensor, written_BJ: torch.Tensor, accepted_B: torch.Tensor) -> None:
        """Count the accepted tokens and the next one, of rows that take part and have penalties."""
        assert self._counts_SV is not None, "`bring` comes first"
        index_J = torch.arange(written_BJ.shape[1], device=written_BJ.device)
        is_counted_B = rows.is_active_B & (columns_BC[:, Column.USES_COUNTS] != 0)
        is_new_BJ = is_counted_B[:, None] & (index_J <= accepted_B[:, None])
        self._counts_SV[: len(written_BJ)].scatter_add_(1, written_BJ, OUTPUT * is_new_BJ.int())

    def note(self, slot: int, row: Sequence, num_new: int) -> None:
        """Record that a round has been read which counted `num_new` tokens of a row that was in this slot then."""
        self._counted[slot] = row, len(row) + num_new

    def drop(self) -> None:
        """Forget whose counts these are: rounds that counted tokens have been dropped."""
        self._counted.clear()
