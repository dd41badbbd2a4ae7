"""The lanes of an engine, each with a target, a drafter and schedules. Where drafters take turns there is one lane."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

from decoding.choices import Turn
from decoding.device import is_out_of_memory
from decoding.drafters.base import Drafter
from decoding.drafters.in_turn import InTurn
from decoding.engine.load import Parts
from decoding.engine.measured_costs import costs_of, measured
from decoding.engine.options import EngineOptions
from decoding.engine.rounds.lane import Lane, divide_slots, recorded_rounds
from decoding.network.target import Target
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule, Schedule
from decoding.pace.trials import Trials
from decoding.sampling.rules import RULES
from decoding.sequence import Sequence

# Prompt tokens between two rounds, on CPU and elsewhere: they use the device well and take as long as a few rounds.
_MAX_PREFILL_TOKENS = (512, 2048)
Costs = CostTable | tuple[CostTable, ...] | None  # of the drafter, or of each that takes turns


def load_in_turn(
    turns: Seq[Turn], options: EngineOptions, load: Callable[[str | None, EngineOptions, Target | None], Parts]
) -> Parts:
    """Return the parts of an engine in which these drafters take turns, the likeliest first.

    `load` loads the parts with a draft, over a target if that is loaded already. A draft that cannot be used is left
    out. Raises ValueError if none can.
    """
    found, known, left_out = dict[str, Parts](), dict[str | None, Parts](), dict[str, None]()
    for drafter, draft, name in turns:
        target = next((each.target for each in found.values()), None)
        try:
            own = known.get(draft) or load(draft, replace(options, drafter=drafter), target)
        except (ValueError, RuntimeError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            left_out[f"{draft or drafter}: {error}"] = None
        else:
            known[draft] = found[name] = replace(own, drafter_name=drafter, name=name)
    if not found:
        raise ValueError(f"no draft in models.draft can be used: {'; '.join(left_out)}")
    first, *others = found.values()
    return replace(first, others=tuple(others), left_out=tuple(left_out))


def measured_costs(
    parts: Parts, options: EngineOptions, costs: Costs = None
) -> tuple[list[tuple[Target, Drafter]], Costs]:
    """Return a target and a drafter for each lane, and what they cost where draft lengths adapt, as `measured` does.

    Where drafters take turns each has a table of its own, in all of which the target takes the same time: they are
    compared by it.
    """
    if not parts.others:
        assert not isinstance(costs, tuple), "one drafter has one table"
        return measured(parts, options, costs)
    slots, tables = options.slots, dict[object, CostTable]()
    if costs is None:
        for each in parts.in_turn:
            tables[_key(each)] = tables.get(_key(each)) or costs_of(each, options, slots)
        like = max(tables.values(), key=lambda table: table.target[-1])
        costs = tuple(
            replace(
                tables[_key(each)],
                target=like.target,
                round_seconds=like.round_seconds,
                position_seconds=like.position_seconds,
            )
            for each in parts.in_turn
        )
    drafter = parts.make_drafter(0, parts.target, slots, options.num_speculative_tokens)
    return [(parts.target, drafter)], costs


def _key(parts: Parts) -> tuple[object, ...]:
    return ("lookup",) if parts.draft is None else (id(parts.draft), parts.drafter_name)


def make_lanes(
    pairs: Seq[tuple[Target, Drafter]],
    options: EngineOptions,
    max_model_len: int,
    costs: Costs,
    waiting: deque[Sequence],
) -> list[Lane]:
    """Return a lane for each target and drafter, as long as there are slots; they take rows from `waiting`."""
    slots, rule = divide_slots(options.slots, len(pairs)), RULES[options.verification]
    budget = options.max_prefill_tokens or _MAX_PREFILL_TOKENS[pairs[0][0].runs_on != "cpu"]
    lanes = []
    for (target, drafter), num_slots in zip(pairs[: len(slots)], slots, strict=True):
        schedules = _schedules(target, drafter, options.num_speculative_tokens, costs)
        ahead, host = recorded_rounds(target, drafter, rule, num_slots)
        if ahead is not None and ahead.depth:
            schedules[0].never_rest()  # a round's time is that of the device, in which the host's work is hidden
        if not schedules[0].would_draft(num_slots):
            drafter.rest()
        lanes.append(
            Lane(
                target,
                drafter,
                schedules,
                waiting,
                num_slots=num_slots,
                max_model_len=max_model_len,
                max_prefill_tokens=-(-budget // len(slots)),
                rule=rule,
                ahead=ahead,
                host=host,
            )
        )
    return lanes


def _schedules(target: Target, drafter: Drafter, most: int, costs: Costs) -> list[Schedule]:
    if costs is None:
        return [FixedSchedule(most)]
    if not isinstance(drafter, InTurn):
        assert isinstance(costs, CostTable), "drafters that take turns are one drafter"
        return [AdaptiveSchedule(costs, most)]
    assert isinstance(costs, tuple), "each drafter has costs of its own"
    taps = [[part.tap for part in each.parts] for each in drafter.drafters]
    are_dear = target.runs_on == "cpu"
    trials = Trials([are_dear and any(tap is not None and tap.is_dear for tap in own) for own in taps])
    return [AdaptiveSchedule(own, most, trials) for own in costs]
