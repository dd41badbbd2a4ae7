"""DeviceRounds: rounds whose state stays on the GPU, each started by two recordings.

A round reads what the round before it left on the device: each row's length and its two newest tokens. So the host need
not know the results of one round to start the next. The first recording is the draft, all steps with their picks; the
second is the target's forward over the drafted tokens, its picks, the verdict and the state after it. A row that the
device does not know as it is now (a new one, or one that the host has changed) is given with its state.

Only shapes decide what is recorded: rows and tokens are rounded up, and padding is of rows that are not active. They
see position 0 and write to the spare position of their slot.

Shapes: S slots, B rows (row b is in slot b), K drafted tokens, J = K + 1 positions, N tokens, V vocabulary, C columns.
"""

from collections.abc import Callable

import torch

from decoding.cache.plan import Plan
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.overlapped.inputs import Given, InputBuffers, RoundInputs, reach_of, rounded_width
from decoding.fused.recordings import Key, Recordings, power_of_two, rounded
from decoding.gpu.attention import CHUNK
from decoding.gpu.pick_table import Column, PickTable
from decoding.gpu.picks import PickInputs, pick
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import first_stop
from decoding.sampling.verdicts import SentVerdicts, Verdicts, accept_if_equal


class DeviceRounds:
    """A target and its draft over their present caches, and the state of the rows in their slots."""

    def __init__(
        self, target: LanguageModel, drafter: ModelDrafter | None, num_slots: int, recordings: Recordings[None]
    ) -> None:
        """Take models whose caches are allocated and whose layers our kernels run, and no recordings made before."""
        device = target.device
        self._target, self._drafter, self._num_slots = target, drafter, num_slots
        self._recordings = recordings
        self._length_S = torch.ones(num_slots, dtype=torch.int64, device=device)
        self._tokens_S2 = torch.zeros(num_slots, 2, dtype=torch.int64, device=device)
        self._buffers: dict[tuple[int, int], InputBuffers] = {}  # by rows and stop ids

    def start(self, inputs: RoundInputs, table: PickTable, num_visible: int) -> SentVerdicts:
        """Start a round of these rows, of which row b is in slot b. `num_visible` bounds every row's length after it.

        The table has the parameters of all rows, in this order.
        """
        num_tokens = sum(inputs.limits) + sum(inputs.is_active)
        for model in [self._target] if self._drafter is None else [self._target, self._drafter.model]:
            assert model.cache is not None, "allocate() comes first"
            model.cache.send_table()
        columns_BC = self._run(inputs, table, num_tokens, num_visible)[: len(inputs.limits)]
        return SentVerdicts(columns_BC if columns_BC.is_cuda else columns_BC.clone())  # the next round writes there

    def prepare(self, table: PickTable, most_drafted: int) -> None:
        """Compile and record the rounds of full slots in which each row drafts equally many tokens, up to these.

        Rows of all lengths are covered. No row takes part, so nothing is changed.
        """
        num_rows = len(table.columns_BC)
        for reach in sorted({reach_of(end) for end in range(1, self._num_positions + CHUNK, CHUNK)}):
            for num_drafted in range(most_drafted + 1) if self._drafter is not None else (0,):
                inputs = RoundInputs([num_drafted] * num_rows, [False] * num_rows, {})
                for _ in range(2):  # the second run is recorded
                    self._run(inputs, table, num_rows * (1 + num_drafted), reach)

    def _run(self, inputs: RoundInputs, table: PickTable, num_tokens: int, num_visible: int) -> torch.Tensor:
        """Run the draft and the target's part of a round; return the columns of the verdicts [B, C]."""
        num_rows = min(rounded(len(inputs.limits)), self._num_slots)
        num_drafted = max(inputs.limits)
        key = (num_rows, power_of_two(table.num_stop_ids) if table.num_stop_ids else 0)
        if key not in self._buffers:
            self._buffers[key] = InputBuffers(*key, table)
        buffers = self._buffers[key]
        buffers.take(inputs, table)
        reach = min(reach_of(num_visible), self._num_positions)
        drafted_BK, draft_key = self._length_S.new_empty(num_rows, 0), (*key, num_drafted, reach)
        if num_drafted:
            drafted_BK = self._recorded(draft_key, lambda: self._draft(buffers, num_drafted, reach))
        width = rounded_width(num_drafted)
        num_padded = min(rounded(max(num_tokens, num_rows)), num_rows * (1 + num_drafted))
        # Its key begins with that of the draft, whose output it reads.
        return self._recorded(
            (*draft_key, num_padded), lambda: self._verify(buffers, drafted_BK, width, num_padded, reach)
        )

    def _recorded(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        self._recordings.inputs(key, lambda: None)
        return self._recordings.run(key, work)

    def state(self) -> tuple[list[int], list[list[int]]]:
        """Return each slot's length and two newest tokens, as the device holds them. It waits for the device."""
        return self._length_S.tolist(), self._tokens_S2.tolist()

    @property
    def _num_positions(self) -> int:
        assert self._target.cache is not None, "allocate() comes first"
        return self._target.cache.num_positions

    def _state(self, buffers: InputBuffers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each row's length and two newest tokens, given or as the device holds them."""
        given_6B, num_rows = buffers.given_6B, buffers.num_rows
        is_fresh_B = given_6B[Given.IS_FRESH].bool()
        lengths_B = torch.where(is_fresh_B, given_6B[Given.LENGTH], self._length_S[:num_rows])
        given_B2 = given_6B[Given.PREVIOUS : Given.NEWEST + 1].T
        return lengths_B, torch.where(is_fresh_B[:, None], given_B2, self._tokens_S2[:num_rows])

    def _draft(self, buffers: InputBuffers, num_drafted: int, num_visible: int) -> torch.Tensor:
        """Draft this many tokens for every row; return them, and behind them how many have finite logits [B, K + 1]."""
        assert self._drafter is not None
        drafter, num_rows = self._drafter, buffers.num_rows
        lengths_B, tokens_B2 = self._state(buffers)
        table = PickTable(buffers.columns_BC, None)
        is_finite_B = drafter.slots.is_finite_S[:num_rows]
        drafted_BK = lengths_B.new_zeros(num_rows, num_drafted)
        num_finite_B = torch.zeros_like(lengths_B)
        positions_BT = (lengths_B[:, None] + torch.arange(-2, 0, device=lengths_B.device)).clamp(min=0)
        tokens_BT = drafter.vocabulary.known(tokens_B2)
        for step in range(num_drafted):
            logits_B1V = self._logits(drafter.model, buffers, tokens_BT, positions_BT, num_visible)
            picks = pick(
                drafter.vocabulary.to_target(logits_B1V),
                PickInputs(table, buffers.no_biases, lengths_B, drafted_BK, None),
                first=step,
            )
            is_finite_B = is_finite_B & picks.is_finite_BJ[:, 0]
            num_finite_B = num_finite_B + is_finite_B
            drafted_BK[:, step] = picks.token_ids_BJ[:, 0]
            tokens_BT = drafter.vocabulary.known(picks.token_ids_BJ)
            positions_BT = (lengths_B + step)[:, None]
        drafter.slots.is_finite_S[:num_rows] = is_finite_B | ~buffers.given_6B[Given.IS_ACTIVE].bool()
        return torch.cat((drafted_BK, num_finite_B[:, None]), dim=1)

    def _logits(
        self,
        model: LanguageModel,
        buffers: InputBuffers,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        num_visible: int,
    ) -> torch.Tensor:
        """Return logits [B, 1, V] after the last token of each row, of which all have T."""
        num_rows, width = tokens_BT.shape
        index_B = torch.arange(num_rows + 1, device=tokens_BT.device)
        is_active_B1 = buffers.given_6B[Given.IS_ACTIVE].bool()[:, None]
        positions_BT = torch.where(is_active_B1, positions_BT, 0)
        slots_N = index_B[:-1, None].expand(num_rows, width).flatten().contiguous()
        is_padding_N = ~is_active_B1.expand(num_rows, width).flatten()
        plan = _plan(model, index_B * width, slots_N, positions_BT.flatten(), is_padding_N, width, num_visible)
        wanted_B = index_B[:-1] * width + width - 1
        return model.run_planned(tokens_BT.flatten(), wanted_B, plan).view(num_rows, 1, -1)

    def _verify(
        self, buffers: InputBuffers, drafted: torch.Tensor, width: int, num_tokens: int, num_visible: int
    ) -> torch.Tensor:
        """Judge the draft and advance the state; return the columns of the verdicts [B, C]."""
        given_6B, num_rows, device = buffers.given_6B, buffers.num_rows, drafted.device
        is_active_B = given_6B[Given.IS_ACTIVE].bool()
        lengths_B, tokens_B2 = self._state(buffers)
        num_drafted = max(drafted.shape[1] - 1, 0)
        drafted_BK = drafted[:, :num_drafted]
        num_drafted_B = given_6B[Given.LIMIT]
        if num_drafted:
            stop_ids_BS = buffers.columns_BC[:, len(Column) :]
            num_drafted_B = torch.minimum(num_drafted_B, drafted[:, num_drafted])
            if stop_ids_BS.shape[1]:
                num_drafted_B = torch.minimum(num_drafted_B, first_stop(drafted_BK, stop_ids_BS))
        # The rows' tokens end to end; behind the last row's comes padding.
        counts_B = (given_6B[Given.LIMIT] + 1) * is_active_B
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
        table = PickTable(buffers.columns_BC, None)
        picks = pick(
            logits_MV.view(num_rows, width + 1, -1),
            PickInputs(table, buffers.no_biases, lengths_B, padded_BK, None),
            first=0,
        )
        accepted_B, next_B = accept_if_equal(picks.token_ids_BJ, padded_BK, num_drafted_B)
        # The newest token of a row that accepts nothing comes before the next one; else the last accepted one does.
        before_BJ = torch.cat((tokens_B2[:, 1:], padded_BK), dim=1)
        previous_B = before_BJ.gather(1, accepted_B[:, None])[:, 0]
        self._length_S[:num_rows] = torch.where(is_active_B, lengths_B + accepted_B + 1, self._length_S[:num_rows])
        newest_B2 = torch.stack((previous_B, next_B), dim=1)
        self._tokens_S2[:num_rows] = torch.where(is_active_B[:, None], newest_B2, self._tokens_S2[:num_rows])
        no_close_call_B = torch.full_like(accepted_B, width + 1)
        verdicts = Verdicts(accepted_B, next_B, no_close_call_B, picks.is_finite_BJ.all(-1))
        return verdicts.columns(padded_BK, num_drafted_B)


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
    return Plan(
        slots_B=None,
        positions_BT=positions_N.new_empty(num_rows, width),  # only its shape is read
        row_first=row_first,
        slots_N=slots_N,
        positions_N=positions_N,
        written_N=torch.where(is_padding_N, spare, positions_N.clamp(max=spare)),
        num_visible=min(num_visible, spare),
        packing=None,
    )
