"""DeviceRounds: rounds whose state stays on the GPU, each started by two recordings.

A round reads what the round before it left on the device: each row's length and its two newest tokens. So the host need
not know the results of one round to start the next. The first recording is the draft, all steps with their picks; the
second is the target's forward over the drafted tokens, its picks, the verdict and the state after it. A row that the
device does not know as it is now (a new one, or one that the host has changed) is given with its state.

Only shapes decide what is recorded: rows and tokens are rounded up, and padding is of rows that are not active. They
see position 0 and write to the spare position of their slot.

Shapes: S slots, B rows (row b is in slot b), K drafted tokens, J = K + 1 positions, N tokens, V vocabulary, C columns.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

from decoding.cache.kv_cache import Plan
from decoding.device import is_out_of_memory
from decoding.drafters.model import ModelDrafter
from decoding.fused.recording import Recorder, Recording
from decoding.gpu.attention import CHUNK
from decoding.gpu.pick_table import Column, PickTable
from decoding.gpu.picks import PickInputs, pick
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import first_stop
from decoding.sampling.judging import RowVerdict

_LEAST_REACH = 4 * CHUNK  # positions
_MOST_RECORDED = 256
_log = logging.getLogger(__name__)

Key = tuple[int | str, ...]  # a kind, rows, stop ids, drafted tokens, positions; of a verdict also tokens


class Start(NamedTuple):
    """A row's state as the host knows it."""

    length: int  # of prompt and output
    previous: int  # the token before the newest one; of a row of one token, that one again
    newest: int


@dataclass(frozen=True)
class Turns:
    """What each row does in a round."""

    limits: Seq[int]  # tokens that it may draft; 0 for a row that takes no part
    is_active: Seq[bool]  # whether it takes part
    starts: dict[int, Start]  # of rows whose state the device does not hold

    @property
    def is_fresh(self) -> list[bool]:
        """Whether a row's state is given, or does not matter."""
        return [row in self.starts or not active for row, active in enumerate(self.is_active)]


class _Given(IntEnum):
    """What the host gives a round, one number of each a row."""

    IS_ACTIVE = 0
    IS_FRESH = 1  # the state is given
    LENGTH = 2
    PREVIOUS = 3
    NEWEST = 4
    LIMIT = 5


class PendingRound:
    """The verdicts of a round, on their way to the host."""

    def __init__(self, columns_BC: torch.Tensor, num_rows: int, num_drafted: int) -> None:
        """Start one copy to the host; nothing waits for it before `result`."""
        self._num_rows, self._num_drafted = num_rows, num_drafted
        self._copied: torch.cuda.Event | None = None
        if columns_BC.device.type == "cuda":
            self._columns_BC = torch.empty(columns_BC.shape, dtype=columns_BC.dtype, pin_memory=True)
            self._columns_BC.copy_(columns_BC, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        else:
            self._columns_BC = columns_BC.clone()

    def result(self) -> list[RowVerdict]:
        """Return each row's verdict; those of rows that were not active have no meaning. The one wait of a round."""
        if self._copied is not None:
            self._copied.synchronize()
        end, never = 4 + self._num_drafted, self._num_drafted + 1
        return [
            RowVerdict(row[0], row[1], never, bool(row[2]), row[3], row[4:end], [])
            for row in self._columns_BC[: self._num_rows].tolist()
        ]


class DeviceRounds:
    """The recordings of a target and its draft over their present caches, and the state of the rows in their slots."""

    def __init__(
        self, target: LanguageModel, drafter: ModelDrafter | None, num_slots: int, record: Recorder | None
    ) -> None:
        """Take models whose caches are allocated and whose layers our kernels run; None: nothing is recorded."""
        device = target.device
        self._target, self._drafter, self._num_slots, self._record = target, drafter, num_slots, record
        self._length_S = torch.ones(num_slots, dtype=torch.int64, device=device)
        self._tokens_S2 = torch.zeros(num_slots, 2, dtype=torch.int64, device=device)
        self._shapes: dict[tuple[int, int], _Inputs] = {}  # by rows and stop ids
        self._recorded: OrderedDict[Key, _Recorded] = OrderedDict()  # the most recently used at the end

    def start(self, turns: Turns, table: PickTable, num_visible: int) -> PendingRound:
        """Start a round of these rows, of which row b is in slot b. `num_visible` bounds every row's length after it.

        The table has the parameters of all rows, in this order.
        """
        num_tokens = sum(turns.limits) + sum(turns.is_active)
        columns_BC = self._run(turns, table, num_tokens, num_visible)
        return PendingRound(columns_BC, len(turns.limits), max(turns.limits))

    def prepare(self, table: PickTable, most_drafted: int) -> None:
        """Compile and record the rounds of full slots in which each row drafts equally many tokens, up to these.

        Rows of all lengths are covered. No row takes part, so nothing is changed.
        """
        num_rows = len(table.columns_BC)
        for reach in sorted({reach_of(end) for end in range(1, self._num_positions + CHUNK, CHUNK)}):
            for num_drafted in range(most_drafted + 1) if self._drafter is not None else (0,):
                turns = Turns([num_drafted] * num_rows, [False] * num_rows, {})
                for _ in range(2):  # the second run is recorded
                    self._run(turns, table, num_rows * (1 + num_drafted), reach)

    def _run(self, turns: Turns, table: PickTable, num_tokens: int, num_visible: int) -> torch.Tensor:
        """Run the draft and the target's part of a round; return the columns of `PendingRound`."""
        num_rows = min(_rounded(len(turns.limits)), self._num_slots)
        num_drafted = max(turns.limits)
        key = (num_rows, _power_of_two(table.num_stop_ids) if table.num_stop_ids else 0)
        if key not in self._shapes:
            self._shapes[key] = _Inputs(*key, table)
        inputs = self._shapes[key]
        inputs.take(turns, table)
        reach = min(reach_of(num_visible), self._num_positions)
        drafted_BK = self._length_S.new_empty(num_rows, 0)
        if num_drafted:
            drafted_BK = self.run_shape(
                ("draft", *key, num_drafted, reach), lambda: self._draft(inputs, num_drafted, reach)
            )
        width = rounded_width(num_drafted)
        num_padded = min(_rounded(max(num_tokens, num_rows)), num_rows * (1 + num_drafted))
        return self.run_shape(
            ("verify", *key, num_drafted, reach, num_padded),
            lambda: self._verify(inputs, drafted_BK, width, num_padded, reach),
        )

    def state(self) -> tuple[list[int], list[list[int]]]:
        """Return each slot's length and two newest tokens, as the device holds them. It waits for the device."""
        return self._length_S.tolist(), self._tokens_S2.tolist()

    @property
    def _num_positions(self) -> int:
        assert self._target.cache is not None, "allocate() comes first"
        return self._target.cache.num_positions

    def run_shape(self, key: Key, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Replay the recording of this key; a run comes before it is recorded, since kernels are compiled in it."""
        recorded = self._recorded.setdefault(key, _Recorded())
        self._recorded.move_to_end(key)
        if len(self._recorded) > _MOST_RECORDED:
            self._forget(next(iter(self._recorded)))
        if recorded.was_run and recorded.recording is None and self._record is not None:
            try:
                recorded.recording = self._record(run)
            except RuntimeError as error:
                if is_out_of_memory(error):  # the engine answers with fewer slots, and records anew
                    raise
                _log.warning("rounds cannot be recorded here (%s): each starts its kernels one by one", error)
                self._record = None
        if recorded.recording is None:
            recorded.was_run = True
            return run()
        recorded.recording.replay()
        return recorded.recording.output

    def _forget(self, key: "Key") -> None:
        """Drop a recording; with a draft go the verdicts that read its output."""
        kind, *sizes = key
        last = len(sizes)
        for other in [
            other for other in self._recorded if other == key or (kind == "draft" and [*other[1 : last + 1]] == sizes)
        ]:
            del self._recorded[other]

    def _state(self, inputs: "_Inputs") -> tuple[torch.Tensor, torch.Tensor]:
        """Return each row's length and two newest tokens, given or as the device holds them."""
        given_6B, num_rows = inputs.given_6B, inputs.num_rows
        is_fresh_B = given_6B[_Given.IS_FRESH].bool()
        lengths_B = torch.where(is_fresh_B, given_6B[_Given.LENGTH], self._length_S[:num_rows])
        given_B2 = given_6B[_Given.PREVIOUS : _Given.NEWEST + 1].T
        return lengths_B, torch.where(is_fresh_B[:, None], given_B2, self._tokens_S2[:num_rows])

    def _draft(self, inputs: "_Inputs", num_drafted: int, num_visible: int) -> torch.Tensor:
        """Draft this many tokens for every row; return them, and behind them how many have finite logits [B, K + 1]."""
        assert self._drafter is not None
        drafter, num_rows = self._drafter, inputs.num_rows
        lengths_B, tokens_B2 = self._state(inputs)
        table = PickTable(inputs.columns_BC, None)
        is_finite_B = drafter.is_finite_S[:num_rows]
        drafted_BK = lengths_B.new_zeros(num_rows, num_drafted)
        num_finite_B = torch.zeros_like(lengths_B)
        positions_BT = (lengths_B[:, None] + torch.arange(-2, 0, device=lengths_B.device)).clamp(min=0)
        tokens_BT = drafter.known(tokens_B2)
        for step in range(num_drafted):
            logits_B1V = self._logits(drafter.model, inputs, tokens_BT, positions_BT, num_visible)
            picks = pick(
                drafter.of_target_ids(logits_B1V),
                PickInputs(table, inputs.no_biases, lengths_B, drafted_BK, None),
                first=step,
            )
            is_finite_B = is_finite_B & picks.is_finite_BJ[:, 0]
            num_finite_B = num_finite_B + is_finite_B
            drafted_BK[:, step] = picks.token_ids_BJ[:, 0]
            tokens_BT = drafter.known(picks.token_ids_BJ)
            positions_BT = (lengths_B + step)[:, None]
        drafter.is_finite_S[:num_rows] = is_finite_B | ~inputs.given_6B[_Given.IS_ACTIVE].bool()
        return torch.cat((drafted_BK, num_finite_B[:, None]), dim=1)

    def _logits(
        self,
        model: LanguageModel,
        inputs: "_Inputs",
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        num_visible: int,
    ) -> torch.Tensor:
        """Return logits [B, 1, V] after the last token of each row, of which all have T."""
        num_rows, width = tokens_BT.shape
        index_B = torch.arange(num_rows + 1, device=tokens_BT.device)
        is_active_B1 = inputs.given_6B[_Given.IS_ACTIVE].bool()[:, None]
        positions_BT = torch.where(is_active_B1, positions_BT, 0)
        slots_N = index_B[:-1, None].expand(num_rows, width).flatten().contiguous()
        is_padding_N = ~is_active_B1.expand(num_rows, width).flatten()
        plan = _plan(model, index_B * width, slots_N, positions_BT.flatten(), is_padding_N, width, num_visible)
        wanted_B = index_B[:-1] * width + width - 1
        return model.run_planned(tokens_BT.flatten(), wanted_B, plan).view(num_rows, 1, -1)

    def _verify(
        self, inputs: "_Inputs", drafted: torch.Tensor, width: int, num_tokens: int, num_visible: int
    ) -> torch.Tensor:
        """Judge the draft and advance the state; return the columns of `PendingRound`."""
        given_6B, num_rows, device = inputs.given_6B, inputs.num_rows, drafted.device
        is_active_B = given_6B[_Given.IS_ACTIVE].bool()
        lengths_B, tokens_B2 = self._state(inputs)
        num_drafted = max(drafted.shape[1] - 1, 0)
        drafted_BK = drafted[:, :num_drafted]
        num_drafted_B = given_6B[_Given.LIMIT]
        if num_drafted:
            stop_ids_BS = inputs.columns_BC[:, len(Column) :]
            num_drafted_B = torch.minimum(num_drafted_B, drafted[:, num_drafted])
            if stop_ids_BS.shape[1]:
                num_drafted_B = torch.minimum(num_drafted_B, first_stop(drafted_BK, stop_ids_BS))
        # The rows' tokens end to end; behind the last row's comes padding.
        counts_B = (given_6B[_Given.LIMIT] + 1) * is_active_B
        row_first = torch.nn.functional.pad(counts_B.cumsum(0), (1, 0))
        token_N = torch.arange(num_tokens, device=device)
        row_N = torch.searchsorted(row_first[1:], token_N, right=True).clamp(max=num_rows - 1)
        is_padding_N = token_N >= row_first[-1]
        place_N = (token_N - row_first[row_N]).clamp(max=num_drafted)
        fed_BJ = torch.cat((tokens_B2[:, 1:], drafted_BK), dim=1)
        positions_N = torch.where(is_padding_N, 0, lengths_B[row_N] - 1 + place_N)
        plan = _plan(self._target, row_first, row_N, positions_N, is_padding_N, num_drafted + 1, num_visible)
        index_J = torch.arange(width + 1, device=device)
        wanted_BJ = torch.minimum(row_first[:-1, None] + index_J, row_first[1:, None] - 1).clamp(min=0)
        logits_MV = self._target.run_planned(fed_BJ[row_N, place_N], wanted_BJ.flatten(), plan)
        padded_BK = torch.nn.functional.pad(drafted_BK, (0, width - num_drafted))
        table = PickTable(inputs.columns_BC, None)
        picks = pick(
            logits_MV.view(num_rows, width + 1, -1),
            PickInputs(table, inputs.no_biases, lengths_B, padded_BK, None),
            first=0,
        )
        picked_BJ = picks.token_ids_BJ
        is_accepted_BK = (picked_BJ[:, :-1] == padded_BK) & (index_J[:-1] < num_drafted_B[:, None])
        accepted_B = is_accepted_BK.long().cumprod(-1).sum(-1)
        next_B = picked_BJ.gather(1, accepted_B[:, None])[:, 0]
        # The newest token of a row that accepts nothing comes before the next one; else the last accepted one does.
        before_BJ = torch.cat((tokens_B2[:, 1:], padded_BK), dim=1)
        previous_B = before_BJ.gather(1, accepted_B[:, None])[:, 0]
        self._length_S[:num_rows] = torch.where(is_active_B, lengths_B + accepted_B + 1, self._length_S[:num_rows])
        newest_B2 = torch.stack((previous_B, next_B), dim=1)
        self._tokens_S2[:num_rows] = torch.where(is_active_B[:, None], newest_B2, self._tokens_S2[:num_rows])
        is_finite_B = picks.is_finite_BJ.all(-1).long()
        columns_B4 = torch.stack((accepted_B, next_B, is_finite_B, num_drafted_B), dim=1)
        return torch.cat((columns_B4, padded_BK), dim=1)


class _Recorded:
    """Work of one shape, and its recording."""

    def __init__(self) -> None:
        self.was_run = False
        self.recording: Recording | None = None


class _Inputs:
    """The tensors that the recordings of a number of rows read."""

    def __init__(self, num_rows: int, num_stop_ids: int, like: PickTable) -> None:
        self.num_rows = num_rows
        self.given_6B = like.columns_BC.new_zeros(len(_Given), num_rows)
        self.columns_BC = like.columns_BC.new_full((num_rows, len(Column) + num_stop_ids), -1)
        self.columns_BC[:, : len(Column)] = like.columns_BC[:1, : len(Column)]
        self.no_biases = torch.empty(0, device=like.columns_BC.device)
        self._table: PickTable | None = None  # that was copied last

    def take(self, turns: Turns, table: PickTable) -> None:
        """Copy what the host gives into these tensors: one copy, and another one where the table is a new one."""
        given_6B = np.zeros(self.given_6B.shape, dtype=np.int64)
        num_rows = len(turns.limits)
        given_6B[_Given.IS_ACTIVE, :num_rows] = turns.is_active
        given_6B[_Given.LIMIT, :num_rows] = turns.limits
        given_6B[_Given.IS_FRESH] = 1  # padding, too
        given_6B[_Given.IS_FRESH, :num_rows] = turns.is_fresh
        given_6B[_Given.LENGTH] = 1
        for row, start in turns.starts.items():
            given_6B[_Given.LENGTH : _Given.NEWEST + 1, row] = start
        self.given_6B.copy_(torch.from_numpy(given_6B), non_blocking=True)
        if table is not self._table:
            own_BC = self.columns_BC[: len(table.columns_BC)]
            num_columns = table.columns_BC.shape[1]
            own_BC[:, :num_columns].copy_(table.columns_BC)
            own_BC[:, num_columns:] = -1  # no stop id
            self._table = table


def _plan(
    model: LanguageModel,
    row_first: torch.Tensor,
    slots_N: torch.Tensor,
    positions_N: torch.Tensor,
    is_padding_N: torch.Tensor,
    width: int,
    num_visible: int,
) -> Plan:
    """Return the plan of a forward whose rows are on the device alone; padding is written to the spare position."""
    assert model.cache is not None, "allocate() comes first"
    spare = model.cache.num_positions
    num_rows = len(row_first) - 1
    assert model.cache.places_S is not None, "our kernels find each slot by its place"
    return Plan(
        slots_B=None,
        positions_BT=positions_N.new_empty(num_rows, width),  # only its shape is read
        row_first=row_first,
        slots_N=model.cache.places_S[slots_N],
        positions_N=positions_N,
        written_N=torch.where(is_padding_N, spare, positions_N.clamp(max=spare)),
        num_visible=min(num_visible, spare),
        packing=None,
    )


def _rounded(number: int) -> int:
    """Round up to one of four sizes between a power of two and the next."""
    step = 1 << max(0, (number - 1).bit_length() - 3)
    return -(-number // step) * step


def rounded_width(num_drafted: int) -> int:
    """Round the positions that are judged up, so that few shapes occur: 0, 1, 2, 4, 8, ... drafted tokens."""
    return num_drafted if num_drafted <= 1 else 1 << (num_drafted - 1).bit_length()


def reach_of(num_visible: int) -> int:
    """Round the positions that attention may read up, so that few shapes occur; chunks that no row has end at once."""
    return max(_LEAST_REACH, _power_of_two(-(-num_visible // CHUNK)) * CHUNK)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
