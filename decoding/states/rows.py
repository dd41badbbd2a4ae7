"""RowStates: what recurrent layers keep of the rows in slots, seen by transformers as the states of an ordinary cache.

A layer may keep several states: windows of convolutions, and recurrent states. A model file gets those of the rows of
one call (`StateBatch`), changes them in place or hands in others, and they are kept where the book says (`StateBook`).

Shapes: B rows of a call, E entries of all slots, C channels, T tokens, K columns of a convolution's window.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from decoding.cpu.huge_pages import zeros_in_huge_pages
from decoding.device import to_device
from decoding.states.book import StateBook


class StateName(NamedTuple):
    """One of the states of a model."""

    layer: int
    kind: str  # "conv", "recurrent" or "linear", as transformers' caches call them
    number: int = 0  # among those of this kind in the layer


class RowSpan(NamedTuple):
    """The tokens of one row in a forward."""

    slot: int
    start: int  # tokens of the row before them
    first: int  # the place of the first one among all that are fed
    num_tokens: int


class StateRows(NamedTuple):
    """The entries of packed rows, for the kernels that advance their states; int64."""

    row_first: torch.Tensor  # [B + 1]: row b has the tokens row_first[b] up to row_first[b + 1]
    read: torch.Tensor  # [B]: the state before the first token; -1: there is none, and it is zero
    written: torch.Tensor  # [N]: where the state behind the token goes; -1: it is not kept


class PackedStates:
    """The entries of a forward's packed rows. Padding belongs to its row, and keeps no state."""

    def __init__(
        self,
        spans: Seq[RowSpan],
        reads: Seq[int | None],
        written: Seq[Seq[int | None]],
        num_fed: int,
        device: torch.device,
    ) -> None:
        """Lay the entries out on a device, for `num_fed` tokens in all."""
        ends = [*(span.first for span in spans[1:]), num_fed]
        self._firsts = [span.first for span in spans]
        self._lengths = [end - first for first, end in zip(self._firsts, ends, strict=True)]
        entries = [[*own, *[None] * (length - len(own))] for own, length in zip(written, self._lengths, strict=True)]
        self.rows = StateRows(
            to_device([*self._firsts, num_fed], device, torch.int64),
            to_device([-1 if entry is None else entry for entry in reads], device, torch.int64),
            to_device([-1 if entry is None else entry for own in entries for entry in own], device, torch.int64),
        )
        self._columns: dict[int, torch.Tensor] = {}

    def columns(self, size: int) -> torch.Tensor:
        """Return the last `size` columns [N, size] that each token sees, its own behind the others.

        They are counted over the columns before each row, `size - 1` of each, and all tokens behind them.
        """
        if size not in self._columns:
            firsts, lengths = torch.tensor(self._firsts), torch.tensor(self._lengths)
            rows_N = torch.arange(len(lengths)).repeat_interleave(lengths)
            nth_N = torch.arange(len(rows_N)) - firsts[rows_N]
            back_NT = nth_N[:, None] + torch.arange(1 - size, 1)
            before_NT = rows_N[:, None] * (size - 1) + (size - 1) + back_NT
            own_NT = len(lengths) * (size - 1) + firsts[rows_N][:, None] + back_NT
            self._columns[size] = torch.where(back_NT < 0, before_NT, own_NT).to(self.rows.read.device)
        return self._columns[size]


class StateHandle:
    """The states of all rows of a forward, in the hands of a model file that asks for them."""

    def __init__(self, states: "RowStates", name: StateName) -> None:
        """Remember which states this stands for."""
        self.states, self.name = states, name

    def to(self, *_: object) -> "StateHandle":
        """Return this: a model file may ask for another type of numbers."""
        return self


@dataclass
class StateBatch:
    """The states of the rows of one call of a layer."""

    has_states: bool  # whether these rows have tokens before
    states: dict[StateName, torch.Tensor] = field(default_factory=dict)  # [B, ...]


class RowStates:
    """The states of all layers, allocated when a layer first hands one in."""

    def __init__(self, num_slots: int, num_recent: int) -> None:
        """Keep the states behind the last `num_recent` verified tokens of each slot, and a few others."""
        self.book = StateBook(num_slots, num_recent)
        self.spans: list[RowSpan] = []  # of the next forward
        self.written: list[list[int | None]] = []  # of each span: the entry for the state behind each token
        self.reads: list[int | None] = []
        self.num_fed = 0
        self._stored: dict[StateName, torch.Tensor] = {}  # [E, ...]
        self._batch: StateBatch | None = None
        self._packed: PackedStates | None = None
        self._hands_out_handles = False

    @contextmanager
    def planned(
        self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], width: int | None, *, keeps_each: bool
    ) -> Iterator[None]:
        """Plan which rows this forward extends; row b's tokens begin at `b * width`, or end to end without one.

        If it raises, no state counts as kept that it may not have written.
        """
        self.spans, self.written, self.reads, self._packed = [], [], [], None
        first = 0
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            self.spans.append(RowSpan(slot, start, first, length))
            read, written = self.book.extend(slot, start, length, keeps_each=keeps_each)
            self.reads.append(read)
            self.written.append(written)
            first += length if width is None else width
        self.num_fed = first
        try:
            yield
        except BaseException:
            for slot, start in zip(slots, starts, strict=True):
                self.book.roll_back(slot, start)
            raise

    def packed(self, device: torch.device) -> PackedStates:
        """Return the entries of the planned forward, for layers that take all of its tokens at once."""
        if self._packed is None:
            self._packed = PackedStates(self.spans, self.reads, self.written, self.num_fed, device)
        return self._packed

    @contextmanager
    def handles(self) -> Iterator[None]:
        """Give handles in place of states to a layer that knows what to do with them."""
        self._hands_out_handles = True
        try:
            yield
        finally:
            self._hands_out_handles = False

    @contextmanager
    def batch(self, reads: Seq[int | None], written: Seq[int | None]) -> Iterator[None]:
        """Give out the states in some entries, all or none of them given, and keep what has become of them."""
        has_states = reads[0] is not None
        assert all((read is not None) == has_states for read in reads), "rows with and without states do not mix"
        self._reads, self._batch = reads, StateBatch(has_states)
        try:
            yield
            self._keep(self._batch, written)
        finally:
            self._batch = None

    def _keep(self, batch: StateBatch, written: Seq[int | None]) -> None:
        places = [number for number, entry in enumerate(written) if entry is not None]
        for name, state in batch.states.items():
            stored = self.storage(name, state)
            if len(places) < len(written):
                state = state[to_device(places, state.device)]
            stored[to_device([written[place] for place in places], state.device)] = state.to(stored.dtype)

    @property
    def has_previous(self) -> bool:
        """Whether the rows of the call have tokens before; outside of a call, whether any row of the forward has."""
        if self._hands_out_handles:
            return True
        if self._batch is not None:
            return self._batch.has_states
        return any(read is not None for read in self.reads)

    def get(self, name: StateName) -> torch.Tensor | StateHandle | None:
        """Return the state of the call's rows [B, ...], which may be changed in place; None if they have none."""
        if self._hands_out_handles:
            return StateHandle(self, name)
        assert self._batch is not None, "a layer with states runs in a batch"
        if not self._batch.has_states:
            return None
        if name not in self._batch.states:
            stored = self._stored[name]
            self._batch.states[name] = stored[to_device(list(self._reads), stored.device)]
        return self._batch.states[name]

    def put(self, name: StateName, state: torch.Tensor | StateHandle) -> None:
        """Take the new state of the call's rows."""
        if isinstance(state, StateHandle):  # what it stands for has been changed
            return
        assert self._batch is not None, "a layer with states runs in a batch"
        self._batch.states[name] = state

    def extend_window(self, name: StateName, new_BCT: torch.Tensor, size: int | None) -> torch.Tensor:
        """Put new columns behind a window, keep its last `size` ones, and return all of them.

        Before the first token of a row there are zeros, as transformers' `update_conv_state` has them.
        """
        window_BCK = self.get(name)
        assert not isinstance(window_BCK, StateHandle), "a layer with handles convolves by them"
        size = new_BCT.shape[-1] if size is None else size
        if window_BCK is not None:
            all_BCT = torch.cat([window_BCK, new_BCT], dim=-1)
        else:
            all_BCT = torch.nn.functional.pad(new_BCT, (max(0, size - new_BCT.shape[-1]), 0))
        self.put(name, all_BCT[..., -size:])
        return all_BCT

    def copy(self, source: int, target: int, length: int) -> None:
        """Make the state behind `length` tokens of slot `target` that of slot `source`."""
        copied = self.book.copy(source, target, length)
        if copied is not None:
            for stored in self._stored.values():
                stored[copied[1]] = stored[copied[0]]

    def sums(self, slot: int, length: int) -> list[torch.Tensor]:
        """Return the sum of each state behind `length` tokens, which is finite if the state is."""
        if not length:
            return []
        entry = self.book.entry(slot, length)
        return [stored[entry].sum(dtype=torch.float32) for stored in self._stored.values()]

    @property
    def num_bytes(self) -> int:
        return sum(stored.numel() * stored.element_size() for stored in self._stored.values())

    def storage(self, name: StateName, state: torch.Tensor) -> torch.Tensor:
        """Return the memory of a state [E, ...], as large as the book says; `state` [B, ...] is one of its kind."""
        stored = self._stored.get(name)
        if stored is None or len(stored) < self.book.num_entries:
            before, shape = stored, (self.book.num_entries, *state.shape[1:])
            if state.device.type == "cpu":  # written whole now: new pages would slow down the first rounds one by one
                num_bytes = self.book.num_entries * state[0].numel() * state.element_size()
                stored = zeros_in_huge_pages(num_bytes).view(state.dtype).view(shape).zero_()
            else:
                stored = torch.zeros(shape, dtype=state.dtype, device=state.device)
            if before is not None:
                stored[: len(before)] = before
            self._stored[name] = stored
        return stored
