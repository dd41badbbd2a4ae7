"""PagedCache: keys and values in pages of 256 positions, which rows get as they grow, for our GPU kernels.

A table on the device says which pages each slot has, and the kernels read it wherever they read or write a position.
It stays at one address, so recordings replay over whatever it says. A page is as long as the chunks whose sums
attention adds in order, so no number depends on where pages lie.

Pages of a prefix are shared by reference. A slot writes to a page only if no other one has it (`reserve`). Page 0
belongs to no row: it takes what is written past the end, and what padding writes.

Shapes: S slots, C pages of the longest row, H KV heads, D head size.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.cache.kv_cache import KVCache
from decoding.cache.pages import PAGE, NoPageError, Pages, blocks_of, num_pages_for
from decoding.device import to_device

_BYTES_AT_ONCE = 32 << 10  # a longer copy from the host's memory might wait for the device


class PagedCache(KVCache):
    """Slots of pages. Layers that keep states are never here: our GPU kernels run none of them."""

    pages_SC: torch.Tensor
    is_paged = True

    def __init__(
        self, num_slots: int, num_positions: int, device: torch.device, tokens_per_slot: int | None = None
    ) -> None:
        """Plan room for rows of up to `num_positions` tokens each, of `tokens_per_slot` on average (None: whole ones).

        There are pages for one whole row at least, and one for each slot.
        """
        super().__init__(num_slots, num_positions)
        num_pages = num_pages_for(num_slots, num_positions, tokens_per_slot, PAGE)
        self.pages = Pages(num_slots, num_pages, PAGE)
        self.block_shape = 1 + num_pages, PAGE
        self._num_columns = num_positions // PAGE + 1  # past the end, too
        self.pages_SC = torch.zeros(num_slots, self._num_columns, dtype=torch.int32, device=device)

    def reserve(self, slot: int, first: int, end: int) -> bool:
        copies = self.pages.reserve(slot, first, min(end, self.num_positions))
        if copies:
            self._copy_pages(copies)
        return copies is not None

    def hold(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int]) -> None:
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            end = max(start + length, len(self.pages[slot]) * PAGE)
            if not self.reserve(slot, start, end):
                raise NoPageError(f"no page is free for {length} tokens of a row, which begin at {start}")

    @torch.inference_mode()
    def send_table(self) -> None:
        """Tell the device which pages the rows have now, before the next forward reads it."""
        num_lines = max(1, _BYTES_AT_ONCE // (4 * self._num_columns))
        for block in blocks_of(self.pages.changed, self.num_slots, num_lines):
            lines = [self.pages[slot] for slot in range(block.start, block.stop)]
            lines = [[*pages, *[0] * (self._num_columns - len(pages))] for pages in lines]
            self.pages_SC[block].copy_(to_device(lines, self.pages_SC.device, torch.int32))
        self.pages.changed.clear()

    def copy(self, source: int, target: int, length: int) -> None:
        """Let slot `target` share the pages of the first positions; `reserve` copies the one that it goes on in."""
        self.pages.share(source, target, length)

    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        self.pages.swap(first, second)

    @torch.inference_mode()
    def is_finite(self, slot: int, length: int) -> bool:
        index = to_device(self.pages[slot][: -(-length // PAGE)], self.pages_SC.device, torch.int64)
        found = [stored[index].flatten(0, 1)[:length].sum(dtype=torch.float32) for stored in self._stored()]
        return not found or bool(torch.stack(found).isfinite().all())

    def zero(self, slot: int) -> None:
        """Do nothing: no row reads what it has not written, and `hold` gives it pages of its own before it writes."""

    @property
    def hides_unwritten(self) -> bool:
        return True

    @torch.inference_mode()
    def _copy_pages(self, copies: Seq[tuple[int, int]]) -> None:
        for source, target in copies:
            for stored in self._stored():
                stored[target] = stored[source]
