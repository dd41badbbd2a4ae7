"""KVCache: keys and values of all rows, preallocated as slots x positions, seen by transformers as an ordinary cache.

The cache knows no lengths. Each forward names its rows' slots and first positions (a `Plan`), writes there and reads
what stands before. Rolling a row back is sending a smaller start next time; a slot is free when nobody names it.
All positions are kept also for sliding layers (the window is masked, not cut), which is what makes rollback trivial.

Shapes: B rows of a forward, T tokens of each (N in all, where rows are ragged), S slots, P positions, H KV heads, D
head size, L visible positions.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

LENGTH_BUCKET = 64  # visible positions are rounded up to this, so that few different shapes occur


@dataclass(frozen=True)
class Plan:
    """Where one forward reads and writes."""

    slots_B: torch.Tensor | None  # None: slots 0..B-1, read in place without a copy
    positions_BT: torch.Tensor  # of each row's tokens
    write_index: torch.Tensor  # [N], into the flat S * P positions
    num_visible: int  # L
    packing: "Packing | None"  # None: all rows have T tokens, and the model sees [B, T]


@dataclass(frozen=True)
class Packing:
    """How N tokens of ragged rows, laid end to end, stand in a B x T rectangle."""

    packed_N: torch.Tensor  # where each packed token stands in the flattened rectangle
    unpacked_BT: torch.Tensor  # which packed token stands here; a row's last one where the row has ended

    @classmethod
    def of(cls, lengths: Seq[int], device: torch.device) -> "Packing | None":
        """The packing of rows with these numbers of tokens; None where they are all equal."""
        if len(set(lengths)) == 1:
            return None
        width, first = max(lengths), 0
        packed: list[int] = []
        unpacked: list[list[int]] = []
        for row, length in enumerate(lengths):
            packed += range(row * width, row * width + length)
            unpacked.append([first + min(index, length - 1) for index in range(width)])
            first += length
        return cls(torch.tensor(packed, device=device), torch.tensor(unpacked, device=device))


class KVCache(Cache):  # type: ignore[misc]
    """Slots x positions of keys and values, allocated layer by layer when the model first writes them."""

    def __init__(self, num_slots: int, num_positions: int) -> None:
        """Room for `num_slots` rows of `num_positions` tokens each."""
        super().__init__(layer_class_to_replicate=self._new_layer)
        self.num_slots = num_slots
        self.num_positions = num_positions
        # One spare position a slot takes what is written past the end (the padding of ragged rows).
        self._num_allocated = num_positions + 1
        self._plan: Plan | None = None

    def plan(
        self, slots_B: torch.Tensor | None, positions_BT: torch.Tensor, longest: int, packing: Packing | None
    ) -> Plan:
        """What the next forward reads and writes: these positions of these slots; `longest` is the last one's end."""
        slots = torch.arange(len(positions_BT), device=positions_BT.device) if slots_B is None else slots_B
        write_index = (slots[:, None] * self._num_allocated + positions_BT.clamp(max=self.num_positions)).flatten()
        end = -(-longest // LENGTH_BUCKET) * LENGTH_BUCKET
        self._plan = Plan(
            slots_B=slots_B,
            positions_BT=positions_BT,
            write_index=write_index if packing is None else write_index[packing.packed_N],
            num_visible=min(end, self._num_allocated),
            packing=packing,
        )
        return self._plan

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of slot `target` those of slot `source`."""
        for stored_SPHD in self._stored():
            stored_SPHD[target, :length] = stored_SPHD[source, :length]

    @torch.inference_mode()
    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange what stands in two slots, so many positions of each; a length of 0 makes it a copy."""
        for stored_SPHD in self._stored():
            kept_PHD = stored_SPHD[second, :second_length].clone()
            stored_SPHD[second, :first_length] = stored_SPHD[first, :first_length]
            stored_SPHD[first, :second_length] = kept_PHD

    @torch.inference_mode()
    def is_finite(self, slot: int, length: int) -> bool:
        """Whether the first `length` positions of a slot hold numbers only. One value comes back from the device."""
        sums = [stored_SPHD[slot, :length].sum(dtype=torch.float32) for stored_SPHD in self._stored()]
        return not sums or bool(torch.stack(sums).isfinite().all())

    @torch.inference_mode()
    def zero(self, slot: int) -> None:
        """Clear a slot: a NaN left in a masked position would still poison whoever comes next (0 * NaN)."""
        for stored_SPHD in self._stored():
            stored_SPHD[slot].zero_()

    def visible(self, slot: int, length: int) -> list[tuple[torch.Tensor, ...]]:
        """Keys and values [length, H, D] of a slot, per layer: what tests compare with a fresh prefill."""
        return [tuple(stored_SPHD[slot, :length] for stored_SPHD in layer.stored()) for layer in self.layers]

    @property
    def num_bytes(self) -> int:
        """Bytes reserved."""
        return sum(stored.numel() * stored.element_size() for stored in self._stored())

    def get_query_offset(self, layer_idx: int = 0) -> torch.Tensor:
        """All query positions, [B, 1, T, 1]: transformers hands them on to our mask function as they are."""
        return self._current.positions_BT[:, None, :, None]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """(visible positions, 0): what the mask must cover."""
        return self._current.num_visible, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Such that model code which adds the query length finds the visible length."""
        return self._current.num_visible - self._current.positions_BT.shape[1]

    @property
    def _current(self) -> Plan:
        assert self._plan is not None, "plan() comes before the forward"
        return self._plan

    def _stored(self) -> Iterator[torch.Tensor]:
        """Keys and values [S, P, H, D] of every layer."""
        for layer in self.layers:
            yield from layer.stored()

    def _new_layer(self) -> "_SlotLayer":
        return _SlotLayer(self)


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False
    is_compileable = False

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self._cache = cache
        self._keys_SPHD: torch.Tensor | None = None
        self._values_SPHD: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._keys_SPHD = self._allocate(key_states)
        self._values_SPHD = self._allocate(value_states)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, T, D] at the planned places; the visible keys and values, [B, H, L, D]."""
        if self._keys_SPHD is None:
            self.lazy_initialization(key_states, value_states)
        return self._write_and_read(self._keys_SPHD, key_states), self._write_and_read(self._values_SPHD, value_states)

    def stored(self) -> tuple[torch.Tensor, ...]:
        if self._keys_SPHD is None or self._values_SPHD is None:
            return ()
        return self._keys_SPHD, self._values_SPHD

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        return self._cache.get_seq_length()

    def get_max_length(self) -> int:
        return self._cache.num_positions

    def _write_and_read(self, stored_SPHD: torch.Tensor | None, new_BHTD: torch.Tensor) -> torch.Tensor:
        assert stored_SPHD is not None
        plan = self._cache._current
        flat = stored_SPHD.view(-1, *stored_SPHD.shape[2:])
        flat.index_copy_(0, plan.write_index, new_BHTD.transpose(1, 2).flatten(0, 1).to(stored_SPHD.dtype))
        if plan.slots_B is None:
            visible_BLHD = stored_SPHD[: len(plan.positions_BT), : plan.num_visible]
        else:
            visible_BLHD = stored_SPHD[:, : plan.num_visible].index_select(0, plan.slots_B)
        return visible_BLHD.transpose(1, 2)

    def _allocate(self, states_BHTD: torch.Tensor) -> torch.Tensor:
        _, num_heads, _, head_size = states_BHTD.shape
        shape = (self._cache.num_slots, self._cache._num_allocated, num_heads, head_size)
        if states_BHTD.device.type != "cpu":
            return torch.zeros(shape, dtype=states_BHTD.dtype, device=states_BHTD.device)
        # The operating system hands out zeroed pages when they are first touched: over-reserving costs nothing.
        num_bytes = int(np.prod(shape)) * states_BHTD.element_size()
        return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(states_BHTD.dtype).view(shape)
