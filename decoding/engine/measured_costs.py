"""The cost table, measured on the models, the device and the dtype that will run.

A forward's time is no formula: on CPU it jumps where a kernel changes, on GPU it is flat until compute binds. A few
forwards at start-up say more than any formula. Each time is the least of a few, taken in turns: other work on the
machine only ever adds, and comes and goes.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import Protocol, cast

import torch

from decoding.choices import LOOK_UP
from decoding.device import seconds_of
from decoding.drafters.base import Drafter
from decoding.engine.instant_parts import ConstantDrafter, InstantTarget
from decoding.engine.load import Parts
from decoding.engine.options import EngineOptions
from decoding.engine.rounds.lane import Lane, divide_slots
from decoding.network.target import Target
from decoding.pace.adaptive_schedule import MOST_PREDICTED
from decoding.pace.cost_table import CostTable
from decoding.pace.lane_count import best_num_lanes, why_delayed
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import Rows, Rule, sampling_batch
from decoding.sampling.rules import COUPLED, RULES
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_REPEATS = 4
_ROUND_REPEATS = 6
_NUM_BEHIND = 3  # forwards behind a first one, to see what the busiest process of a target takes
_DRAFT_STEPS = 3  # in a row: the target has just pushed the draft's weights out of the caches
_MAX_MODEL_LEN = 64  # of the rows whose rounds are timed
_PROMPT = (0,) * 16
_ASSUMED_SHARE = 1 / 8  # of a target forward's time, for a draft step that could not be timed
_log = logging.getLogger(__name__)


class TimedDraft(Protocol):
    """What is timed of a draft."""

    @property
    def block_tokens(self) -> int:
        """Return the most tokens that one forward drafts, as in `CostTable`."""

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Measure one forward over `num_tokens` tokens of each row. The cache is overwritten."""


def measured(
    parts: Parts, options: EngineOptions, costs: CostTable | None = None
) -> tuple[list[tuple[Target, Drafter]], CostTable | None]:
    """Return a target and a drafter for each lane, and what they cost where draft lengths adapt.

    The lanes are as few as the parts have, or as many as it takes to hide what is measured to be on the way. Nothing is
    measured if `costs` are given.
    """
    slots, most = divide_slots(options.slots, parts.num_lanes), options.num_speculative_tokens
    is_adaptive = options.draft_length == "adaptive" and parts.drafter_name != "none"
    if costs is None and (is_adaptive or parts.most_lanes > parts.num_lanes):
        costs = costs_of(parts, options, slots[0])
        has_model = parts.draft is not None or parts.remote is not None
        lengths = range(0 if is_adaptive or not has_model else most, 1 + most * has_model)
        num_lanes = best_num_lanes(costs, options.slots, lengths, parts.num_lanes, parts.most_lanes)
        slots = divide_slots(options.slots, num_lanes)
        costs = replace(costs, num_lanes=len(slots))
        if (delayed := why_delayed(costs, options.slots, most * has_model)) is not None:
            _log.warning(delayed)
    pairs = [(own := parts.target_of(lane), parts.make_drafter(lane, own, num, most)) for lane, num in enumerate(slots)]
    return pairs, costs if is_adaptive else None


def costs_of(parts: Parts, options: EngineOptions, num_slots: int) -> CostTable:
    """Measure what rounds of a lane of `num_slots` rows cost."""
    target, most = parts.target, options.num_speculative_tokens
    target.allocate(num_slots, parts.max_model_len, most)
    drafter = parts.make_drafter(0, target, num_slots, most)
    target.hand_out(drafter.tap)
    assert target.cache is not None
    may_predict = parts.drafter_name in LOOK_UP and not target.cache.has_states
    most_predicted = min(MOST_PREDICTED, parts.max_model_len - 2) if may_predict else 0
    costs = measure_costs(target, parts.draft, num_slots, most, most_predicted)
    timed_drafter = drafter if parts.draft is not None else None
    costs = with_overhead(costs, target, timed_drafter, num_slots, most, RULES[options.verification])
    return with_remote_drafts(costs, drafter, target.device, num_slots, most) if drafter.is_remote else costs


def measure_costs(
    target: Target, draft: TimedDraft | None, num_slots: int, num_draft_tokens: int, most_predicted: int = 0
) -> CostTable:
    """Measure seconds of the target by tokens in a forward and of the draft by rows; both have their caches allocated.

    A row alone may draft `most_predicted` tokens, if it has a prediction.
    Without a draft model drafting is taken to cost nothing. What is in the caches is overwritten.
    """
    rows = _row_counts(num_slots)
    shapes = [(num_rows, 1) for num_rows in rows]
    shapes += [(num_slots, 1 + drafted) for drafted in range(1, num_draft_tokens + 1) if drafted & (drafted - 1) == 0]
    if num_slots > 1:
        shapes.append((1, 1 + num_draft_tokens))
    if num_slots * (1 + num_draft_tokens) <= most_predicted:
        shapes.append((1, 1 + most_predicted))
    target_seconds, draft_seconds = dict.fromkeys(shapes, float("inf")), dict.fromkeys(rows, float("inf"))
    several_seconds = dict(target_seconds)
    for repeat in range(1 + _REPEATS):  # the first time warms up, and is hardly ever the least
        for shape in shapes:
            target_seconds[shape] = min(target_seconds[shape], target.seconds(*shape))
            several = target.seconds_of_several(*shape, 1 + _NUM_BEHIND) if repeat % 2 else None
            if several is not None:
                several_seconds[shape] = min(several_seconds[shape], several)
        for num_rows in rows:
            steps = _draft_seconds(target, draft, num_rows) if draft else 0.0
            draft_seconds[num_rows] = min(draft_seconds[num_rows], steps)
    # Of forwards that are sent one behind the other, each adds what the busiest process takes; the rest is on the way.
    busiest = {shape: min((several_seconds[shape] - one) / _NUM_BEHIND, one) for shape, one in target_seconds.items()}
    chain = {shape: one - busiest[shape] for shape, one in target_seconds.items()}
    return CostTable(
        _by_tokens(busiest),
        _ascending(list(draft_seconds.items())),
        chain=_by_tokens(chain),
        block_tokens=draft.block_tokens if draft else 0,
    )


def with_overhead(
    costs: CostTable,
    target: Target,
    drafter: Drafter | None,
    num_slots: int,
    num_draft_tokens: int,
    rule: Rule,
) -> CostTable:
    """Add the engine's own time to the table, for a lane of `num_slots` rows under a rule.

    It is what is left of a round when the target's forward takes none: a lane over a stand-in, which hands out the same
    logits at once, spends its rounds on distributions, noise, verification and counting. Its sampling is plain
    (temperature 1); `AdaptiveSchedule` corrects the figures by what rounds take with the parameters in use.

    `drafter` is one with a draft model, if that is what will draft, and cannot be used afterwards: what a draft step
    takes beside its forward goes into the table's draft times.
    """
    stand_in = cast(Target, InstantTarget(target, num_slots, 1 + num_draft_tokens))
    schedule = FixedSchedule(num_draft_tokens)

    def measure(drafter: Drafter) -> float:
        """Return the least time of a round with all slots in use."""
        params = SamplingParams(max_tokens=_MAX_MODEL_LEN - 4, ignore_eos=True)  # no round drafts less for its end
        lane = Lane(
            stand_in,
            drafter,
            [schedule],
            deque(Sequence.create([0], params, row=row) for row in range(num_slots)),
            num_slots=num_slots,
            max_model_len=_MAX_MODEL_LEN,
            max_prefill_tokens=num_slots,  # all prompts at once: each has one token
            rule=rule,
        )
        times = [seconds_of(lambda: lane.advance(num_slots), target.device) for _ in range(_ROUND_REPEATS + 1)]
        return min(times[1:])  # the first one admits

    plain, widest = (measure(ConstantDrafter(n)) for n in (0, num_draft_tokens))
    position_seconds = max(0.0, widest - plain) / (num_slots * num_draft_tokens)
    round_seconds = max(0.0, plain - num_slots * position_seconds)
    step_seconds = 0.0
    if drafter is not None:
        num_tokens = min(costs.block_tokens or num_draft_tokens, num_draft_tokens)
        as_wide = plain + (widest - plain) * num_tokens / num_draft_tokens
        known = costs.drafting_seconds(num_tokens, num_slots) + num_tokens * num_slots * position_seconds
        num_forwards = 1 if costs.block_tokens else num_tokens
        step_seconds = max(0.0, (measure(drafter) - as_wide - known) / num_forwards)  # what the table does not have yet
    return replace(
        costs,
        draft=tuple((num_rows, seconds + step_seconds) for num_rows, seconds in costs.draft),
        round_seconds=round_seconds,
        position_seconds=position_seconds,
    )


def with_remote_drafts(
    costs: CostTable, drafter: Drafter, device: torch.device, num_slots: int, num_draft_tokens: int
) -> CostTable:
    """Add the times of a drafter in another process, whose drafts are made while other rows are verified.

    Where the drafter cannot be reached a step is assumed to take an eighth of a target forward. The drafter cannot be
    used afterwards.
    """
    counts, most = _row_counts(num_slots), num_draft_tokens
    seconds = {(num_rows, length): float("inf") for num_rows in counts for length in sorted({1, most})}
    sequences = tuple(Sequence.create(_PROMPT, SamplingParams(), row=row) for row in range(num_slots))
    drafter.admit(range(num_slots), sequences)
    for _ in range(1 + _REPEATS):  # the first time, each row is sent whole
        for num_rows, length in seconds:
            took = _remote_seconds(drafter, sequences[:num_rows], length, device)
            seconds[num_rows, length] = min(seconds[num_rows, length], took)
    if not all(took < float("inf") for took in seconds.values()):
        _log.warning("drafts could not be timed; a step is taken to cost %g of a target forward", _ASSUMED_SHARE)
        assumed = [(num_rows, _ASSUMED_SHARE * costs.target_seconds(num_rows)) for num_rows in counts]
        return replace(costs, draft=_ascending(assumed), is_overlapped=True)
    steps = [(n, max(seconds[n, most] - seconds[n, 1], 0.0) / max(most - 1, 1)) for n in counts]
    trip = max(seconds[n, 1] - step for n, step in steps)
    return replace(costs, draft=_ascending(steps), is_overlapped=True, trip_seconds=max(trip, 0.0))


def _row_counts(num_slots: int) -> list[int]:
    """Return the numbers of rows to time: powers of two, and all slots."""
    return sorted({min(2**power, num_slots) for power in range(num_slots.bit_length() + 1)})


def _draft_seconds(target: Target, draft: TimedDraft, num_rows: int) -> float:
    """Time one of a few draft steps, as they come in a round: behind a forward of the target."""
    target.seconds(1, 1)
    return sum(draft.seconds(num_rows, 1) for _ in range(_DRAFT_STEPS)) / _DRAFT_STEPS


def _remote_seconds(drafter: Drafter, sequences: Seq[Sequence], length: int, device: torch.device) -> float:
    """Time a draft of `length` tokens for each of these rows; infinity if none came."""
    sampling = sampling_batch(tuple(sequences), frozenset(), device)
    rows = Rows(tuple(sequences), sampling, (length,) * len(sequences), COUPLED, (False,) * len(sequences))
    started = time.perf_counter()
    drafter.ask(rows)
    draft = drafter.propose(rows)
    took = time.perf_counter() - started
    return took if draft.token_ids_BK.shape[1] == length else float("inf")


def _by_tokens(seconds: Mapping[tuple[int, int], float]) -> tuple[tuple[int, float], ...]:
    return _ascending([(num_rows * num_tokens, took) for (num_rows, num_tokens), took in seconds.items()])


def _ascending(table: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Sort by size, one entry each, times never falling: more work is never cheaper, whatever the clock saw."""
    sizes, times = zip(*sorted(table), strict=True)
    return tuple(dict(zip(sizes, accumulate(times, max), strict=True)).items())
