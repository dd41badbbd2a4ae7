"""StageRecovery: what stands in the slots of a target's stages, and how it comes to stand there again.

A mirror of every slot's tokens says what stands when all that was sent is settled. When a stage is lost it is replaced,
all stages start with empty slots, and the mirrors' tokens are written again; a slot over which a stage is lost twice
alone is given up, and the others are written. What was given up, and why, is remembered.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import chain
from typing import Any

import ray
import tenacity
from ray.exceptions import RayError

from actors.stages.facts import goes_with
from actors.stages.group import StageGroup, StageLostError
from actors.stages.slot_mirror import SlotMirror
from actors.stages.step import Step, StepSender
from actors.stages.work import Work
from decoding.cache.prefill import Piece, batches
from pipeline.logs import Event

MOST_DEATHS_ALONE = 2  # of stages over one row, with nothing beside it
_MOST_LOSSES = 256  # rows whose end is remembered: longer than anybody asks
_LONGEST_WAIT_S = 30.0
_log = logging.getLogger(__name__)


class StagesGoneError(RuntimeError):
    """Stages are lost again and again, or cannot be replaced."""


class StageRecovery:
    """Brings the stages of a group to where their mirrors are."""

    def __init__(self, group: StageGroup, sender: StepSender) -> None:
        """Nothing stands anywhere."""
        self.mirrors: dict[int, SlotMirror] = {}  # of each session
        self.is_whole = True  # the stages hold what the mirrors say
        self._group, self._sender = group, sender
        self._losses: deque[tuple[list[int], str]] = deque(maxlen=_MOST_LOSSES)  # tokens, and how stages died over them
        self._num_losses = 0  # in a row

    def note(self, step: Step) -> None:
        """All stages have done this step."""
        self._num_losses = 0
        work = step.work
        mirror = None if work.session is None else self.mirrors.get(work.session)
        if mirror is None:
            return
        mirror.change(work.changes)
        for slot, start, token_ids in zip(work.slots, work.starts, step.token_ids, strict=True):
            mirror.write(slot, start, token_ids)

    def give_up(self, step: Step, why: str | None) -> None:
        """A row's step is left undone. What stood in its slot from where it begins belonged to somebody else."""
        if step.work.session is None:
            return
        mirror, slot, start = self.mirrors[step.work.session], step.work.slots[0], step.work.starts[0]
        mirror.write(slot, min(start, len(mirror[slot])), [])
        if why is not None:
            self._losses.append(([*mirror[slot], *step.token_ids[0]], why))

    def loss(self, token_ids: Seq[int]) -> str | None:
        """How stages died over a row that begins like this one; None if none is known to have."""
        return next((why for lost, why in self._losses if list(token_ids[: len(lost)]) == lost), None)

    def forget(self, sessions: Iterable[int]) -> None:
        """After an error that is nobody's death: what stands in these sessions is not relied on.

        Ranks that raised one have been ended (`answer_of`).
        """
        self.is_whole = self._group.settings.tensor_parallel == 1
        for session in sessions:
            self.mirrors[session].clear_all()

    def recover(self, lost: StageLostError, flying: Seq[Step]) -> None:
        """Replace what is lost, and write again what the mirrors say. The steps in flight are to be sent again.

        Raises StagesGoneError if stages are lost more often in a row than they may be, or cannot be replaced, and what
        the writing itself raised; nothing stands then, and what was in flight is to be dropped.
        """
        self.is_whole = False
        self._let_go(flying)
        settings = self._group.settings
        if self._num_losses >= settings.most_restarts:
            raise self._gone(lost)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StageLostError),
            wait=tenacity.wait_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(settings.start_timeout_s),
                tenacity.stop_after_attempt(settings.most_restarts - self._num_losses),
            ),
            before=self._count_loss,
        )
        deaths: dict[tuple[int, int], int] = {}
        until = time.monotonic() + settings.start_timeout_s
        try:
            attempts(self._rebuild, deaths, until)
        except tenacity.RetryError as error:
            raise self._gone(error.last_attempt.exception()) from lost
        except Exception:  # nobody's death, and yet the stages do not hold what they should: out of memory, say
            self._clear_mirrors()
            raise
        self.is_whole = True
        _log.info(Event("stages recovered", steps_in_flight=len(flying), losses_in_a_row=self._num_losses))

    def _let_go(self, flying: Seq[Step]) -> None:
        """Wait for what is in flight, and look at its errors: those that nobody has seen Ray would log."""
        sent = [list(chain.from_iterable(step.references)) for step in flying if step.references]
        every = list(chain.from_iterable(sent))
        ready: set[Any] = set()
        if every:
            timeout_s = self._group.settings.timeout_s
            ready.update(ray.wait(every, num_returns=len(every), timeout=timeout_s, fetch_local=False)[0])
        for references in sent:
            for reference in reversed(references):
                if reference in ready:
                    try:
                        ray.get(reference)
                    except RayError:
                        continue
                    if self._group.settings.tensor_parallel == 1:
                        break  # what came before it is no error either
        for step in flying:
            step.references = None

    def _gone(self, last: BaseException | None) -> StagesGoneError:
        num_losses, self._num_losses = self._num_losses, 0
        self._clear_mirrors()
        return StagesGoneError(
            f"stages of the target were lost {num_losses} times in a row, and stages.most_restarts is "
            f"{self._group.settings.most_restarts}; the last time: {last}"
        )

    def _clear_mirrors(self) -> None:
        for mirror in self.mirrors.values():
            mirror.clear_all()

    def _count_loss(self, _: tenacity.RetryCallState) -> None:
        self._num_losses += 1

    def _rebuild(self, deaths: dict[tuple[int, int], int], until: float) -> None:
        self._group.heal(until)
        may_go = goes_with(self._group.facts())
        for session, mirror in self.mirrors.items():
            self._group.ask_all("allocate", session, mirror.num_slots, mirror.num_positions)
            written = [slot for slot in range(mirror.num_slots) if mirror[slot]]
            for slots in [[slot] for slot in written] if deaths else [written]:
                for batch in batches(slots, [mirror[slot] for slot in slots], None, may_go):
                    self._write(session, mirror, batch, deaths)

    def _write(self, session: int, mirror: SlotMirror, batch: list[Piece], deaths: dict[tuple[int, int], int]) -> None:
        """Write tokens of a mirror again; `deaths` counts stages lost over each slot of a session alone."""
        work = Work(
            session,
            slots=tuple(piece.slot for piece in batch),
            starts=tuple(piece.start for piece in batch),
            lengths=tuple(len(piece.tokens) for piece in batch),
        )
        step = Step(work, [piece.tokens for piece in batch])
        self._sender.send(step)
        try:
            self._sender.answer(step)
        except StageLostError:
            for piece in batch:
                place = session, piece.slot
                deaths[place] = deaths.get(place, 0) + (len(batch) == 1)
                if deaths[place] >= MOST_DEATHS_ALONE:
                    mirror.clear(piece.slot)  # whoever stands there has a hole, and is looked at alone
            raise
