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
from collections.abc import Sequence as Seq

import torch
from torch.nn.functional import pad

from decoding.cache.features import Features
from decoding.engine.rounds.overlapped.counts import SlotCounts
from decoding.engine.rounds.overlapped.inputs import Given, InputBuffers, RoundInputs, reach_of, rounded_width
from decoding.engine.rounds.overlapped.steps import DraftSteps, HeadSteps, RowsNow, plan_of
from decoding.fused.recordings import Key, Recordings, power_of_two, rounded
from decoding.gpu.attention import CHUNK
from decoding.gpu.pick_table import Column, PickTable
from decoding.gpu.picks import PickInputs, pick
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import first_stop
from decoding.sampling.logprobs import LineLogprobs, written
from decoding.sampling.verdicts import SentVerdicts, Verdicts, accept_if_equal


class DeviceRounds:
    """A target and its draft over their present caches, and the state of the rows in their slots."""

    def __init__(
        self, target: LanguageModel, steps: DraftSteps | None, num_slots: int, recordings: Recordings[None]
    ) -> None:
        """Take models whose caches are allocated and whose layers our kernels run, and no recordings made before."""
        device = target.device
        self.steps = steps
        self.counts = SlotCounts(num_slots, target.vocab_size, device)
        self._target, self._num_slots = target, num_slots
        self._recordings = recordings
        self._length_S = torch.ones(num_slots, dtype=torch.int64, device=device)
        self._tokens_S2 = torch.zeros(num_slots, 2, dtype=torch.int64, device=device)
        self._buffers: dict[tuple[int, int], InputBuffers] = {}  # by rows and stop ids

    def start(
        self, inputs: RoundInputs, table: PickTable, num_visible: int, num_logprobs: Seq[int | None] = ()
    ) -> SentVerdicts:
        """Start a round of these rows, of which row b is in slot b. `num_visible` bounds every row's length after it.

        The table has the parameters of all rows, in this order. `num_logprobs` as in `ScoreRequest`.
        """
        num_tokens = sum(inputs.limits) + sum(inputs.is_active)
        logprobs = LineLogprobs(num_logprobs, rounded_width(max(inputs.limits)) + 1, self._target.vocab_size)
        for cache in [self._target.cache] if self.steps is None else [self._target.cache, self.steps.slots.cache]:
            assert cache is not None, "allocate() comes first"
            cache.send_table()
        columns_BC = self._run(inputs, table, num_tokens, num_visible, logprobs)[: len(inputs.limits)]
        if not columns_BC.is_cuda:
            columns_BC = columns_BC.clone()  # the next round writes there
        return SentVerdicts(columns_BC, logprobs if logprobs.num_top else None)

    def prepare(self, table: PickTable, most_drafted: int) -> None:
        """Compile and record the rounds of full slots in which each row drafts equally many tokens, up to these.

        Rows of all lengths are covered. No row takes part, so nothing is changed.
        """
        num_rows = len(table.columns_BC)
        for reach in sorted({reach_of(end) for end in range(1, self._num_positions + CHUNK, CHUNK)}):
            for num_drafted in range(most_drafted + 1) if self.steps is not None else (0,):
                inputs = RoundInputs([num_drafted] * num_rows, [False] * num_rows, {})
                logprobs = LineLogprobs((), rounded_width(num_drafted) + 1, self._target.vocab_size)
                for _ in range(2):  # the second run is recorded
                    self._run(inputs, table, num_rows * (1 + num_drafted), reach, logprobs)

    def _run(
        self, inputs: RoundInputs, table: PickTable, num_tokens: int, num_visible: int, logprobs: LineLogprobs
    ) -> torch.Tensor:
        """Run the draft and the target's part of a round; return what `_verify` does."""
        num_rows = min(rounded(len(inputs.limits)), self._num_slots)
        num_drafted = max(inputs.limits)
        of_inputs = (num_rows, power_of_two(table.num_stop_ids) if table.num_stop_ids else 0)
        if of_inputs not in self._buffers:
            self._buffers[of_inputs] = InputBuffers(*of_inputs, table)
        buffers, has_counts = self._buffers[of_inputs], any(table.uses_counts)
        buffers.take(inputs, table)
        reach = min(reach_of(num_visible), self._num_positions)
        drafted_BK, draft_key = self._length_S.new_empty(num_rows, 0), (*of_inputs, has_counts, num_drafted, reach)
        if self.steps is not None and (num_drafted or self.steps.reads_always):
            drafted_BK = self._recorded(draft_key, lambda: self._draft(buffers, num_drafted, reach, has_counts))
        width = rounded_width(num_drafted)
        num_padded = min(rounded(max(num_tokens, num_rows)), num_rows * (1 + num_drafted))
        # Its key begins with that of the draft, whose output it reads.
        return self._recorded(
            (*draft_key, num_padded, *logprobs.num_top),
            lambda: self._verify(buffers, drafted_BK, width, num_padded, reach, has_counts, logprobs),
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

    def _rows(self, buffers: InputBuffers) -> RowsNow:
        """Return each row as the host gives it or the device holds it."""
        given_6B, num_rows = buffers.given_6B, buffers.num_rows
        is_fresh_B = given_6B[Given.IS_FRESH].bool()
        lengths_B = torch.where(is_fresh_B, given_6B[Given.LENGTH], self._length_S[:num_rows])
        given_B2 = given_6B[Given.PREVIOUS : Given.NEWEST + 1].T
        tokens_B2 = torch.where(is_fresh_B[:, None], given_B2, self._tokens_S2[:num_rows])
        return RowsNow(lengths_B, tokens_B2, given_6B[Given.IS_ACTIVE].bool())

    def _draft(self, buffers: InputBuffers, num_drafted: int, num_visible: int, has_counts: bool) -> torch.Tensor:
        """Draft this many tokens for every row; return them, and behind them how many have finite logits [B, K + 1]."""
        assert self.steps is not None
        steps, num_rows, rows = self.steps, buffers.num_rows, self._rows(buffers)
        counted, table = self.counts.of(rows) if has_counts else None, PickTable(buffers.columns_BC, None)
        is_finite_B = steps.slots.is_finite_S[:num_rows]
        drafted_BK = rows.lengths_B.new_zeros(num_rows, num_drafted)
        num_finite_B = torch.zeros_like(rows.lengths_B)
        found = steps.first(rows, num_visible, is_wanted=num_drafted > 0)
        for step in range(num_drafted):
            if step:
                found = steps.next(rows, drafted_BK[:, step - 1 : step], found, step, num_visible)
            inputs = PickInputs(table, buffers.no_biases, rows.lengths_B, drafted_BK, counted)
            picks = pick(found[0], inputs, first=step)
            is_finite_B = is_finite_B & picks.is_finite_BJ[:, 0]
            num_finite_B = num_finite_B + is_finite_B
            drafted_BK[:, step] = picks.token_ids_BJ[:, 0]
        steps.slots.is_finite_S[:num_rows] = is_finite_B | ~rows.is_active_B
        return torch.cat((drafted_BK, num_finite_B[:, None]), dim=1)

    def _verify(
        self,
        buffers: InputBuffers,
        drafted: torch.Tensor,
        width: int,
        num_tokens: int,
        num_visible: int,
        has_counts: bool,
        logprobs: LineLogprobs,
    ) -> torch.Tensor:
        """Judge the draft and advance the state; return the columns of verdicts and log-probabilities [B, C]."""
        given_6B, num_rows, device = buffers.given_6B, buffers.num_rows, drafted.device
        rows = self._rows(buffers)
        lengths_B, tokens_B2, is_active_B = rows
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
        row_first = pad(counts_B.cumsum(0), (1, 0))
        token_N = torch.arange(num_tokens, device=device)
        row_N = torch.searchsorted(row_first[1:], token_N, right=True).clamp(max=num_rows - 1)
        is_padding_N = token_N >= row_first[-1]
        place_N = (token_N - row_first[row_N]).clamp(max=num_drafted)
        fed_BJ = torch.cat((tokens_B2[:, 1:], drafted_BK), dim=1)
        positions_N = torch.where(is_padding_N, 0, lengths_B[row_N] - 1 + place_N)
        assert self._target.cache is not None, "allocate() comes first"
        plan = plan_of(self._target.cache, row_first, row_N, positions_N, is_padding_N, num_drafted + 1, num_visible)
        index_J = torch.arange(width + 1, device=device)
        wanted_BJ = torch.minimum(row_first[:-1, None] + index_J, row_first[1:, None] - 1).clamp(min=0)
        features = None if self._target.tap is None else Features(self._target.tap)
        logits_MV = self._target.run_planned(fed_BJ[row_N, place_N], wanted_BJ.flatten(), plan, features)
        padded_BK = pad(drafted_BK, (0, width - num_drafted))
        counted, table = self.counts.of(rows) if has_counts else None, PickTable(buffers.columns_BC, None)
        logits_BJV = logits_MV.view(num_rows, width + 1, -1)
        picks = pick(logits_BJV, PickInputs(table, buffers.no_biases, lengths_B, padded_BK, counted), first=0)
        accepted_B, next_B = accept_if_equal(picks.token_ids_BJ, padded_BK, num_drafted_B)
        written_BJ = written(accepted_B, next_B, padded_BK, logits_BJV.shape[-1])
        if features is not None:
            assert isinstance(self.steps, HeadSteps), "a drafter would miss the features"
            self.steps.keep(rows, features.take()[wanted_BJ], written_BJ)
        if has_counts:
            self.counts.add(rows, buffers.columns_BC, written_BJ, accepted_B)
        # The newest token of a row that accepts nothing comes before the next one; else the last accepted one does.
        before_BJ = torch.cat((tokens_B2[:, 1:], padded_BK), dim=1)
        previous_B = before_BJ.gather(1, accepted_B[:, None])[:, 0]
        self._length_S[:num_rows] = torch.where(is_active_B, lengths_B + accepted_B + 1, self._length_S[:num_rows])
        newest_B2 = torch.stack((previous_B, next_B), dim=1)
        self._tokens_S2[:num_rows] = torch.where(is_active_B[:, None], newest_B2, self._tokens_S2[:num_rows])
        no_close_call_B = torch.full_like(accepted_B, width + 1)
        verdicts = Verdicts(accepted_B, next_B, no_close_call_B, picks.is_finite_BJ.all(-1))
        columns_BC = verdicts.columns(padded_BK, num_drafted_B)
        if logprobs.num_top:
            columns_BC = torch.cat((columns_BC, *logprobs.lines(written_BJ, logits_BJV)), dim=1)
        return columns_BC
