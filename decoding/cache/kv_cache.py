"""KVCache: keys and values of all rows, preallocated as slots x positions, seen by transformers as an ordinary cache.

The cache knows no lengths. Each forward names its rows' slots and first positions (a `Plan`), writes there and reads
the positions before. A row is rolled back by a smaller start in the next forward; a slot is free when no forward names
it. Sliding layers keep all positions, too (the window is masked, not cut), which makes rollback trivial.

Shapes: B rows of a forward, T tokens of each (N in all, where rows are ragged), S slots, P positions, H KV heads, D
head size, L visible positions.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import partial
from weakref import ref

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from decoding.cache.plan import Packing, Plan
from decoding.cpu.huge_pages import zeros_in_small_pages
from decoding.device import to_device
from decoding.states.calls import StateCalls
from decoding.states.rows import RowStates

LENGTH_BUCKET = 64  # visible positions are rounded up to this, so that few different shapes occur


class KVCache(StateCalls, Cache):  # type: ignore[misc]
    """Slots x positions of keys and values, allocated layer by layer when the model first writes them."""

    pages_SC: torch.Tensor | None = None  # where rows have pages (`decoding/cache/paged_cache.py`): those of each slot
    is_paged = False  # whether rows have memory only as far as that is reserved

    def __init__(
        self,
        num_slots: int,
        num_positions: int,
        moves_by_name: torch.device | None = None,
        *,
        num_recent_states: int = 0,
    ) -> None:
        """Plan room for `num_slots` rows of `num_positions` tokens each; the first write of a layer allocates it.

        With `num_recent_states` some layers keep states; that many of them are kept of the last tokens of each row.

        With `moves_by_name` (the device) two slots change places by changing names, and nothing is copied. It needs an
        attention that finds each token's slot by `Plan.slots_N` and reads no position that its row has not written:
        that of our GPU kernels.
        """
        # Layers refer to the cache weakly: its memory is freed with its last user, not by the garbage collector.
        Cache.__init__(self, layer_class_to_replicate=partial(SlotLayer, ref(self)))
        self.num_slots, self.num_positions = num_slots, num_positions
        # One spare position in each slot receives what is written past the end (the padding of ragged rows).
        self.num_allocated = num_positions + 1
        self.block_shape = num_slots, self.num_allocated  # of keys and values in memory
        self.misleads = 0  # added to the length that a model asks for
        # Where each slot's keys and values are, for the host and on the device; None: at its own number.
        self._places: list[int] | None = None
        self.places_S: torch.Tensor | None = None
        if moves_by_name is not None:
            self._places = list(range(num_slots))
            self.places_S = torch.arange(num_slots, device=moves_by_name)
        self._plan: Plan | None = None
        self.states = RowStates(num_slots, num_recent_states) if num_recent_states else None

    def plan(
        self,
        slots_B: torch.Tensor | None,
        positions_BT: torch.Tensor,
        longest: int,
        packing: Packing | None,
        is_exact: bool = False,
    ) -> Plan:
        """Set which positions of which slots the next forward reads and writes; `longest` is the longest row's end.

        With `is_exact` no position behind that end is visible, so that the only row's length is the visible one.
        """
        self.send_table()
        slots = torch.arange(len(positions_BT), device=positions_BT.device) if slots_B is None else slots_B
        if self.places_S is not None:
            slots = self.places_S[slots]
        num_rows, num_tokens = positions_BT.shape
        slots_N = slots[:, None].expand_as(positions_BT).flatten().contiguous()  # of one row it would be a view
        positions_N = positions_BT.flatten()
        if packing is None:
            row_first = torch.arange(num_rows + 1, device=slots.device) * num_tokens
        else:
            row_first = packing.row_first
            slots_N, positions_N = slots_N[packing.packed_N], positions_N[packing.packed_N]
        bucket = 1 if is_exact else LENGTH_BUCKET
        end = -(-longest // bucket) * bucket
        plan = Plan(
            slots_B=slots_B,
            positions_BT=positions_BT,
            slots_N=slots_N,
            row_first=row_first,
            positions_N=positions_N,
            written_N=positions_N.clamp(max=self.num_positions),
            num_visible=min(end, self.num_positions),  # the spare position holds junk
            packing=packing,
        )
        self.use(plan)
        return plan

    def use(self, plan: Plan) -> None:
        """Read and write by this plan from now on."""
        self._plan = plan

    def reserve(self, slot: int, first: int, end: int) -> bool:
        """Take care that a row may write its positions from `first` up to `end`, and give back what lies behind.

        Return False if there is no memory for them now. Here each slot has memory for all of its positions.
        """
        return True

    def hold(self, slots: Seq[int], starts: Seq[int], lengths: Seq[int]) -> None:
        """Take care that rows may write this many positions from their starts on; raises NoPageError if not."""

    def send_table(self) -> None:
        """Tell the device where the rows are; slots do so as soon as they move."""

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Make the first `length` positions of slot `target` those of slot `source`."""
        if self.states is not None:
            self.states.copy(source, target, length)
        source, target = self._place(source), self._place(target)
        for stored_SPHD in self._stored():
            stored_SPHD[target, :length] = stored_SPHD[source, :length]

    @torch.inference_mode()
    def swap(self, first: int, second: int, first_length: int, second_length: int) -> None:
        """Exchange the first positions of two slots, as many of each as given; a length of 0 makes it a copy."""
        if self.states is not None:
            self.states.book.swap(first, second)
        if self._places is not None and self.places_S is not None:
            places = self._places
            places[first], places[second] = places[second], places[first]
            self.places_S.copy_(to_device(places, self.places_S.device), non_blocking=True)
            return
        for stored_SPHD in self._stored():
            kept_PHD = stored_SPHD[second, :second_length].clone()
            stored_SPHD[second, :first_length] = stored_SPHD[first, :first_length]
            stored_SPHD[first, :second_length] = kept_PHD

    @torch.inference_mode()
    def is_finite(self, slot: int, length: int) -> bool:
        """Tell whether the first `length` positions of a slot are finite. One value is copied from the device."""
        sums = [] if self.states is None else self.states.sums(slot, length)
        slot = self._place(slot)
        sums += [stored_SPHD[slot, :length].sum(dtype=torch.float32) for stored_SPHD in self._stored()]
        return not sums or bool(torch.stack(sums).isfinite().all())

    @torch.inference_mode()
    def zero(self, slot: int) -> None:
        """Clear a slot: a NaN left in a masked position would still spoil the next row's logits (0 * NaN)."""
        if self.states is not None:
            self.states.book.forget(slot)
        slot = self._place(slot)
        for stored_SPHD in self._stored():
            stored_SPHD[slot].zero_()

    @property
    def has_states(self) -> bool:
        """Whether some layers keep states, so that a row can go on only from lengths at which they were kept."""
        return self.states is not None

    def longest(self, slot: int, length: int) -> int:
        """Return how many of the first `length` tokens in a slot a row can go on from: all, or those with a state."""
        return length if self.states is None else self.states.book.longest(slot, length)

    def pretend(self, slot: int, length: int) -> None:
        """Let a row be timed behind that many tokens, whatever is in its slot: a forward has read some there."""
        if self.states is not None:
            self.states.book.pretend(slot, length)

    @property
    def hides_unwritten(self) -> bool:
        """Whether no forward reads what its row has not written, so that values left in a slot do no harm."""
        return self._places is not None

    def _place(self, slot: int) -> int:
        return slot if self._places is None else self._places[slot]

    @property
    def num_bytes(self) -> int:
        of_states = 0 if self.states is None else self.states.num_bytes
        return of_states + sum(stored.numel() * stored.element_size() for stored in self._stored())

    def get_query_offset(self, layer_idx: int = 0) -> torch.Tensor:
        """Return all query positions, [B, 1, T, 1]: transformers passes them to our mask function unchanged."""
        return self._current.positions_BT[:, None, :, None]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (visible positions, 0), which the mask must cover."""
        return self._current.num_visible, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length from which model code that adds the query length gets the visible length.

        It is the row's own only if the forward has one row (`SlotNetwork.runs_rows_apart`); the probe sees to it that
        no other forward of the model depends on it. For that it `misleads` the model.
        """
        return self._current.num_visible - self._current.positions_BT.shape[1] + self.misleads

    @property
    def _current(self) -> Plan:
        assert self._plan is not None, "plan() comes before the forward"
        return self._plan

    def slot_layer(self, index: int) -> "SlotLayer":
        """Return the layer of that number, for code that runs layers without transformers' own cache calls."""
        while len(self.layers) <= index:
            self.layers.append(SlotLayer(ref(self)))
        layer: SlotLayer = self.layers[index]
        return layer

    def _stored(self) -> Iterator[torch.Tensor]:
        """Yield keys and values [S, P, H, D] of every layer."""
        for layer in self.layers:
            yield from layer.stored()


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values."""

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: "ref[KVCache]") -> None:
        super().__init__()
        self._cache_ref = cache
        # Indexed as [S, H, P, D] for attention. On CPU the memory has the same order: a head's positions end to end are
        # read twice as fast. On CUDA the positions of a slot lie end to end, as the kernels for ragged rows expect.
        self._keys_and_values: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.storage(key_states.transpose(1, 2).flatten(0, 1), value_states.transpose(1, 2).flatten(0, 1))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, H, T, D] at the planned places; return the visible keys and values, [B, H, L, D]."""
        self.write(key_states.transpose(1, 2).flatten(0, 1), value_states.transpose(1, 2).flatten(0, 1))
        return self.read()

    def storage(self, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [S, H, P, D], allocated for tokens like these at the first call."""
        if self._keys_and_values is None:  # heads of keys and of values may differ
            self._keys_and_values = self._allocate(keys_NHD), self._allocate(values_NHD)
        return self._keys_and_values

    def write(self, keys_NHD: torch.Tensor, values_NHD: torch.Tensor) -> None:
        """Store the keys and values of N tokens at the planned places."""
        plan, new = self._cache._current, (keys_NHD, values_NHD)
        for stored_SHPD, new_NHD in zip(self.storage(*new), new, strict=True):
            stored_SHPD.transpose(1, 2)[plan.slots_N, plan.written_N] = new_NHD.to(stored_SHPD.dtype)

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the planned rows' visible keys and values, [B, H, L, D]; no copy if those are the first slots."""
        assert self._keys_and_values is not None, "write() comes first"
        keys_SHPD, values_SHPD = self._keys_and_values
        return self._visible(keys_SHPD), self._visible(values_SHPD)

    def stored(self) -> tuple[torch.Tensor, ...]:
        """Return keys and values as [S, P, H, D]."""
        return tuple(stored_SHPD.transpose(1, 2) for stored_SHPD in self._keys_and_values or ())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        return self._cache.get_seq_length()

    def get_max_length(self) -> int:
        return self._cache.num_positions

    @property
    def _cache(self) -> KVCache:
        cache = self._cache_ref()
        assert cache is not None, "a layer outlives its cache"
        return cache

    def _visible(self, stored_SHPD: torch.Tensor) -> torch.Tensor:
        plan = self._cache._current
        if plan.slots_B is None:
            return stored_SHPD[: len(plan.positions_BT), :, : plan.num_visible]
        return stored_SHPD[:, :, : plan.num_visible].index_select(0, plan.slots_B)

    def _allocate(self, new_NHD: torch.Tensor) -> torch.Tensor:
        _, num_heads, head_size = new_NHD.shape
        num_slots, num_positions = self._cache.block_shape
        if new_NHD.device.type != "cpu":
            shape = (num_slots, num_positions, num_heads, head_size)
            return torch.zeros(shape, dtype=new_NHD.dtype, device=new_NHD.device).transpose(1, 2)
        # Reserving too much costs nothing: memory is taken as it is written.
        shape = (num_slots, num_heads, num_positions, head_size)
        num_bytes = int(np.prod(shape)) * new_NHD.element_size()
        return zeros_in_small_pages(num_bytes).view(new_NHD.dtype).view(shape)
