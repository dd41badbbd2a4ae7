"""DeviceRounds: rounds whose state stays on the GPU, each started by two recordings.

A round reads what the round before it left on the device: each row's length and its two newest tokens. So the host need
not know the results of one round to start the next. The first recording is the draft, all steps with their picks; the
second is the target's forward over the drafted tokens, its picks, the verdict and the state after it. A row that the
device does not know as it is now (a new one, or one that the host has changed) is given with its state. The host may
give a row a draft, too, in place of that of the steps. Where grammars have masks, the verdict is a recording of its
own, and the host computes them while the target reads.

Only shapes decide what is recorded: rows and tokens are rounded up, and padding is of rows that are not active. They
see position 0 and write to the spare position of their slot.

Shapes: S slots, B rows (row b is in slot b), K drafted tokens, J = K + 1 positions, N tokens, V vocabulary, C columns.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from decoding.cache.features import Features
from decoding.engine.rounds.overlapped.counts import SlotCounts
from decoding.engine.rounds.overlapped.grammars import GrammarBuffers, RoundGrammars
from decoding.engine.rounds.overlapped.inputs import Given, InputBuffers, RoundInputs, reach_of, rounded_width
from decoding.engine.rounds.overlapped.steps import DraftSteps, RowsNow, plan_of
from decoding.fused.recordings import Key, Recordings, power_of_two, rounded
from decoding.gpu.attention import CHUNK
from decoding.gpu.pick_table import Column, PickTable
from decoding.gpu.picks import PickInputs, pick
from decoding.network.language_model import LanguageModel
from decoding.sampling.distribution import first_stop
from decoding.sampling.logprobs import LineLogprobs, written
from decoding.sampling.masks import with_masks
from decoding.sampling.verdicts import OnItsWay, SentVerdicts, Verdicts, accept_if_equal

_SCORED, _MASKED = -1, -2  # in the keys of two recordings between which the host brings masks


class _Sizes(NamedTuple):
    """What a recording is made for, beside the number of rows and stop ids."""

    has_counts: int
    num_steps: int  # of the draft
    reach: int  # positions that attention may read
    num_newest: int  # tokens that the first step reads
    num_given: int  # drafted tokens that the host gives
    num_tokens: int  # that the target reads, padding included


class _Work(NamedTuple):
    """What the recordings of a round read, and what they are made for."""

    buffers: InputBuffers
    sizes: _Sizes
    drafted: torch.Tensor  # what the steps of the draft return
    logprobs: LineLogprobs


# What the target reads and judges: the rows, the tokens drafted for them [B, K], and how many of each are judged [B].
_Known = tuple[RowsNow, torch.Tensor, torch.Tensor]


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
        self.grammar_buffers: GrammarBuffers | None = None  # made with the first grammar

    def start(
        self,
        inputs: RoundInputs,
        table: PickTable,
        num_visible: int,
        num_logprobs: Seq[int | None] = (),
        grammars: RoundGrammars | None = None,
    ) -> SentVerdicts:
        """Start a round of these rows, of which row b is in slot b. `num_visible` bounds every row's length after it.

        The table has the parameters of all rows, in this order. `num_logprobs` as in `ScoreRequest`. Masks of
        `grammars` are asked for when the target has begun, and what was picked without them is checked.
        """
        for cache in [self._target.cache] if self.steps is None else [self._target.cache, self.steps.slots.cache]:
            assert cache is not None, "allocate() comes first"
            cache.send_table()
        logprobs = LineLogprobs(num_logprobs, rounded_width(inputs.num_drafted) + 1, self._target.vocab_size)
        columns_BC = self._run(inputs, table, num_visible, logprobs, grammars)[: len(inputs.limits)]
        if not columns_BC.is_cuda:
            columns_BC = columns_BC.clone()  # the next round writes there
        recheck = None if grammars is None else grammars.check
        return SentVerdicts(columns_BC, logprobs if logprobs.num_top else None, recheck)

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
                    self._run(inputs, table, reach, logprobs)

    def _run(
        self,
        inputs: RoundInputs,
        table: PickTable,
        num_visible: int,
        logprobs: LineLogprobs,
        grammars: RoundGrammars | None = None,
    ) -> torch.Tensor:
        """Run the draft and the target's part of a round; return what `_judge` does."""
        num_rows, num_steps = min(rounded(len(inputs.limits)), self._num_slots), max(inputs.limits)
        of_inputs = (num_rows, power_of_two(table.num_stop_ids) if table.num_stop_ids else 0)
        if of_inputs not in self._buffers:
            self._buffers[of_inputs] = InputBuffers(*of_inputs, table)
        buffers = self._buffers[of_inputs]
        buffers.take(inputs, table)
        # What is looked up has any length: with more sizes few rounds would be those that were recorded.
        round_up = power_of_two if inputs.num_given else rounded
        sizes = _Sizes(
            has_counts=any(table.uses_counts),
            num_steps=num_steps,
            reach=min(reach_of(num_visible), self._num_positions),
            num_newest=inputs.num_newest,
            num_given=inputs.num_given,
            num_tokens=min(round_up(num_rows + sum(inputs.lengths)), num_rows * (1 + inputs.num_drafted)),
        )
        drafted = self._length_S.new_empty(num_rows, 0)
        if self.steps is not None and (num_steps or self.steps.reads_always):
            drafted = self._recorded((*of_inputs, *sizes[:4]), lambda: self._draft(buffers, sizes))
        # Its key begins with that of the draft, whose output it reads.
        work, key = _Work(buffers, sizes, drafted, logprobs), (*of_inputs, *sizes)
        if grammars is None:
            return self._recorded((*key, *logprobs.num_top), lambda: self._judge(work))
        sent = OnItsWay(drafted) if num_steps and grammars.rows.masked_first else None
        here, score_key = grammars.buffers, (*key, _SCORED)
        logits_BJV = self._recorded(score_key, lambda: here.keep(self._score(work, self._known(work))))
        grammars.logits_BJV = logits_BJV
        tokens = inputs.given or [()] * len(inputs.limits)
        if sent is not None:
            limited = zip(tokens, sent.result().tolist(), inputs.limits, strict=False)
            tokens = [own or found[: min(limit, found[num_steps])] for own, found, limit in limited]
        sizes_BJ = logits_BJV.shape[:2]
        here.take(grammars.masks(tokens, sizes_BJ[1]), num_rows)
        judge_key = (*score_key, _MASKED, *logprobs.num_top)
        return self._recorded(judge_key, lambda: self._judge(work, logits_BJV, here.masks(*sizes_BJ)))

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

    def _rows(self, buffers: InputBuffers, num_newest: int) -> RowsNow:
        """Return each row as the host gives it or the device holds it; more than two tokens are given."""
        given_LB, num_rows = buffers.given_LB, buffers.num_rows
        is_fresh_B = given_LB[Given.IS_FRESH].bool()
        lengths_B = torch.where(is_fresh_B, given_LB[Given.LENGTH], self._length_S[:num_rows])
        newest_BW = given_LB[len(Given) : len(Given) + num_newest].T
        if num_newest == 2:
            newest_BW = torch.where(is_fresh_B[:, None], newest_BW, self._tokens_S2[:num_rows])
        return RowsNow(lengths_B, newest_BW, given_LB[Given.IS_ACTIVE].bool())

    def _draft(self, buffers: InputBuffers, sizes: _Sizes) -> torch.Tensor:
        """Draft tokens for every row; return them, and behind them how many have finite logits [B, steps + 1]."""
        assert self.steps is not None
        steps, num_rows, rows = self.steps, buffers.num_rows, self._rows(buffers, sizes.num_newest)
        counted, table = self.counts.of(rows) if sizes.has_counts else None, PickTable(buffers.columns_BC, None)
        is_finite_B = steps.slots.is_finite_S[:num_rows]
        drafted_BK = rows.lengths_B.new_zeros(num_rows, sizes.num_steps)
        num_finite_B = torch.zeros_like(rows.lengths_B)
        found = steps.first(rows, sizes.reach, sizes.num_steps)
        for step in range(sizes.num_steps):
            if step:
                found = steps.next(rows, drafted_BK[:, step - 1 : step], found, step, sizes.reach)
            inputs = PickInputs(table, buffers.no_biases, rows.lengths_B, drafted_BK, counted)
            picks = pick(found[0], inputs, first=step)
            is_finite_B = is_finite_B & picks.is_finite_BJ[:, 0]
            num_finite_B = num_finite_B + is_finite_B
            drafted_BK[:, step] = picks.token_ids_BJ[:, 0]
        steps.slots.is_finite_S[:num_rows] = is_finite_B | ~rows.is_active_B
        return torch.cat((drafted_BK, num_finite_B[:, None]), dim=1)

    def _known(self, work: _Work) -> _Known:
        """Return the rows, and what the steps or the host drafted for them."""
        buffers, sizes, drafted, _ = work
        given_LB, num_steps = buffers.given_LB, sizes.num_steps
        drafted_BK, num_drafted_B = drafted[:, :num_steps], given_LB[Given.LIMIT]
        if num_steps:
            num_drafted_B = torch.minimum(num_drafted_B, drafted[:, num_steps])
        if sizes.num_given:
            first, num_drafted = len(Given) + sizes.num_newest, max(num_steps, sizes.num_given)
            is_given_B = given_LB[Given.IS_GIVEN].bool()
            given_BK = given_LB[first : first + sizes.num_given].T.contiguous()
            given_BK, drafted_BK = (pad(each, (0, num_drafted - each.shape[1])) for each in (given_BK, drafted_BK))
            drafted_BK = torch.where(is_given_B[:, None], given_BK, drafted_BK)
            num_drafted_B = torch.where(is_given_B, given_LB[Given.LIMIT], num_drafted_B)
        stop_ids_BS = buffers.columns_BC[:, len(Column) :]
        if drafted_BK.shape[1] and stop_ids_BS.shape[1]:
            num_drafted_B = torch.minimum(num_drafted_B, first_stop(drafted_BK, stop_ids_BS))
        return self._rows(buffers, sizes.num_newest), drafted_BK, num_drafted_B

    def _score(self, work: _Work, known: _Known) -> torch.Tensor:
        """Return the target's logits [B, J, V] along the draft, and keep the features that the draft reads of it."""
        (buffers, sizes, *_), (rows, drafted_BK, _) = work, known
        num_rows, num_drafted, device = buffers.num_rows, drafted_BK.shape[1], drafted_BK.device
        # The rows' tokens end to end; behind the last row's comes padding.
        counts_B = (buffers.given_LB[Given.LIMIT] + 1) * rows.is_active_B
        row_first = pad(counts_B.cumsum(0), (1, 0))
        token_N = torch.arange(sizes.num_tokens, device=device)
        row_N = torch.searchsorted(row_first[1:], token_N, right=True).clamp(max=num_rows - 1)
        is_padding_N = token_N >= row_first[-1]
        place_N = (token_N - row_first[row_N]).clamp(max=num_drafted)
        fed_BJ = torch.cat((rows.newest_BW[:, -1:], drafted_BK), dim=1)
        positions_N = torch.where(is_padding_N, 0, rows.lengths_B[row_N] - 1 + place_N)
        assert self._target.cache is not None, "allocate() comes first"
        plan = plan_of(self._target.cache, row_first, row_N, positions_N, is_padding_N, num_drafted + 1, sizes.reach)
        index_J = torch.arange(rounded_width(num_drafted) + 1, device=device)
        wanted_BJ = torch.minimum(row_first[:-1, None] + index_J, row_first[1:, None] - 1).clamp(min=0)
        features = None if self._target.tap is None else Features(self._target.tap)
        logits_MV = self._target.run_planned(fed_BJ[row_N, place_N], wanted_BJ.flatten(), plan, features)
        if features is not None:
            assert self.steps is not None, "a drafter would miss the features"
            self.steps.keep_features(rows, features.take()[wanted_BJ])
        return logits_MV.view(num_rows, len(index_J), -1)

    def _judge(
        self, work: _Work, logits_BJV: torch.Tensor | None = None, masks_BJW: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Judge the draft by these logits, or those of `_score`, and advance the state; return columns [B, C].

        They are those of verdicts and log-probabilities.
        """
        (buffers, sizes, _, logprobs), known = work, self._known(work)
        logits_BJV = self._score(work, known) if logits_BJV is None else logits_BJV
        (rows, drafted_BK, num_drafted_B), num_rows, width = known, buffers.num_rows, logits_BJV.shape[1] - 1
        padded_BK = pad(drafted_BK, (0, width - drafted_BK.shape[1]))
        counted, table = self.counts.of(rows) if sizes.has_counts else None, PickTable(buffers.columns_BC, None)
        allowed_BJV = logits_BJV if masks_BJW is None else with_masks(logits_BJV, masks_BJW)
        picks = pick(allowed_BJV, PickInputs(table, buffers.no_biases, rows.lengths_B, padded_BK, counted), first=0)
        accepted_B, next_B = accept_if_equal(picks.token_ids_BJ, padded_BK, num_drafted_B)
        written_BJ = written(accepted_B, next_B, padded_BK, logits_BJV.shape[-1])
        if self.steps is not None:
            self.steps.keep_tokens(rows, written_BJ)
        if sizes.has_counts:
            self.counts.add(rows, buffers.columns_BC, written_BJ, accepted_B)
        # The newest token of a row that accepts nothing comes before the next one; else the last accepted one does.
        before_BJ = torch.cat((rows.newest_BW[:, -1:], padded_BK), dim=1)
        previous_B = before_BJ.gather(1, accepted_B[:, None])[:, 0]
        lengths_B = rows.lengths_B + accepted_B + 1
        self._length_S[:num_rows] = torch.where(rows.is_active_B, lengths_B, self._length_S[:num_rows])
        newest_B2 = torch.stack((previous_B, next_B), dim=1)
        self._tokens_S2[:num_rows] = torch.where(rows.is_active_B[:, None], newest_B2, self._tokens_S2[:num_rows])
        no_close_call_B = torch.full_like(accepted_B, width + 1)
        verdicts = Verdicts(accepted_B, next_B, no_close_call_B, picks.is_finite_BJ.all(-1))
        columns_BC = verdicts.columns(padded_BK, num_drafted_B)
        if logprobs.num_top:
            columns_BC = torch.cat((columns_BC, *logprobs.lines(written_BJ, logits_BJV)), dim=1)
        return columns_BC
