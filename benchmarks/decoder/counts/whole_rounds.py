"""Rounds that the host starts as a whole, ahead of the last verdicts (`decoding/engine/rounds/overlapped/`).

The host starts no single forwards there, and does not know the lengths of rows that are under way. Which forwards a
round consists of is found from the state of its rows, which is read from the device.

This file imports nothing of DeviceRounds itself, since only machines with Triton can.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.roofline.model_size import Forward
from decoding import Engine

if TYPE_CHECKING:
    from decoding.engine.rounds.overlapped.inputs import RoundInputs
    from decoding.engine.rounds.overlapped.rounds import DeviceRounds
    from decoding.gpu.pick_table import PickTable
    from decoding.sampling.verdicts import SentVerdicts

Watcher = Callable[["DeviceRounds", "RoundInputs", "PickTable", int], None]


@contextmanager
def watching_rounds(watch: Watcher) -> Iterator[None]:
    """Call `watch` before each round of the engines that exist, with the arguments of its start."""
    module = sys.modules.get("decoding.engine.rounds.overlapped.rounds")
    if module is None:  # no engine has loaded it
        yield
        return
    original = module.DeviceRounds.start

    def start(
        rounds: "DeviceRounds", inputs: "RoundInputs", table: "PickTable", num_visible: int, *others: object
    ) -> "SentVerdicts":
        watch(rounds, inputs, table, num_visible)
        pending: SentVerdicts = original(rounds, inputs, table, num_visible, *others)
        return pending

    with patch.object(module.DeviceRounds, "start", start):
        yield


def with_states(rounds: "DeviceRounds", inputs: "RoundInputs") -> "RoundInputs":
    """Return the inputs with the state of every row, so that they can be started again and again. Waits for the device.

    A row that takes no part has no state.
    """
    start_of = sys.modules["decoding.engine.rounds.overlapped.inputs"].Start
    held = [start_of(length, *tokens) for length, tokens in zip(*rounds.state(), strict=True)]
    starts = {row: inputs.starts.get(row, held[row]) for row, active in enumerate(inputs.is_active) if active}
    return replace(inputs, starts=starts)


def forwards_of(inputs: "RoundInputs") -> tuple[Forward, list[Forward]]:
    """Return the target's forward of a round, and the draft's; every turn is given with its row's state.

    The target reads each row's newest token and its draft. The draft's first step reads each row's newest tokens, two
    or more, and every later one a token that was drafted, for all rows of the round.
    """
    rows, drafted = [(start.length, inputs.limits[row]) for row, start in inputs.starts.items()], inputs.lengths
    scored = Forward.of_rows([length - 1 for length, _ in rows], [1 + drafted[row] for row in inputs.starts])
    steps: list[Forward] = []
    for step in range(max((limit for _, limit in rows), default=0)):
        width = 1 if step else inputs.num_newest
        starts = [max(length + step - width, 0) for length, _ in rows]
        steps.append(Forward.of_rows(starts, [width] * len(rows), num_logits=len(rows)))
    return scored, steps


def rounds_of(engine: Engine) -> "DeviceRounds | None":
    """Return what starts an engine's rounds, once it has run; None for an engine whose host starts every forward."""
    rounds: Any = getattr(engine.lanes[0].ahead, "device_rounds", None)
    return rounds  # type: ignore[no-any-return]


def begin_anew(used: Engine, fresh: Engine) -> Engine:
    """Return an engine that has learned nothing, but keeps what `used` has recorded, if recordings are an engine's own.

    Rounds that overlap are recorded by the engine. It learns by its schedule alone, since none of its drafters learns,
    and it forgets what its slots hold, so that prompts are read again.
    """
    if rounds_of(used) is None:
        return fresh
    used.clear()
    for lane, new in zip(used.lanes, fresh.lanes, strict=True):
        lane.schedule, lane.schedules = new.schedule, new.schedules
    return used
