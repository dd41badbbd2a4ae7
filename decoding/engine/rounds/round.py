"""A round: all rows that run advance by at least one token. The whole algorithm is in `Rounds.advance`.

    start  ->  a drafter guesses K tokens a row, cheaply; the target scores and judges all K + 1 positions in one pass
    read   ->  the verdicts: how many tokens of each row are accepted, and what follows
    apply  ->  tokens and counts go into the rows; drafter and schedule learn

The order of these is a parameter, `Starter.depth`. On a host each round is read before the next one starts (0). Where a
GPU holds the state of the rows, the next round starts before the last one is read (1), so that the GPU never waits for
Python (`decoding/engine/rounds/overlapped/`).

Rollback is implicit: a row's next forward starts at its committed length, over what a rejected token left there.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from decoding.engine.rounds.commits import Commits
from decoding.network.target import PendingVerdicts
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import Schedule
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence

Running = tuple[Sequence, ...]  # row b is in slot b; the same object as long as the rows stay the same
Decided = tuple[int, Sequence, RowVerdict]  # a row's slot, the row, and what was decided about its draft


@dataclass
class Started:
    """A round that has been started and not been read."""

    rows: tuple[Sequence | None, ...]  # row b was in slot b; None takes no part
    plan: DraftPlan
    verdicts: PendingVerdicts
    schedule: Schedule

    def read(self, running: Running, newer: "Started | None") -> list[Decided]:
        """Wait for the verdicts, and return those on rows that take part. `newer` has been started since."""
        return list(zip(range(len(running)), running, self.verdicts.result(), strict=True))

    def learn(
        self, rows: Seq[Sequence], num_drafted: Seq[int], num_accepted: Seq[int], stop: Callable[[], float]
    ) -> None:
        """Learn from the round, whose tokens have been committed; `stop` ends it, and returns its seconds."""
        self.schedule.observe(self.plan, rows, num_drafted, num_accepted, stop())


class Starter(ABC):
    """One way to start rounds of a lane's rows."""

    depth: int  # how many rounds are under way when another one starts

    def can_start(self, rows: Running) -> bool:
        """Tell whether a round of these rows can be started in this way."""
        return True

    def ask(self, rows: Running, schedule: Schedule) -> bool:
        """Ask for what the round needs of another process; tell whether that must be awaited."""
        return False

    @abstractmethod
    def start(self, rows: Running, schedule: Schedule, before: Started | None) -> Started | None:
        """Start a round of these rows; None if it needs the verdicts of the round `before`, which is under way."""

    def drop(self) -> None:  # noqa: B027 - there may be nothing to drop
        """Drop what was kept of rows and of their next round."""

    def forget_caches(self) -> None:  # noqa: B027 - there may be nothing to forget
        """Forget what was made for the caches of target and drafter, which end now."""


class Rounds:
    """The rounds of a lane, one after the other."""

    def __init__(self, starters: Seq[Starter], commits: Commits) -> None:
        """Start each round with the first starter that can."""
        self.commits = commits
        self.seconds = 0.0  # spent in rounds: drafting, scoring, verifying and committing, not waiting
        self._starters = starters
        self._under_way: deque[Started] = deque()
        self._finished: list[Sequence] = []  # not handed out yet
        self._seconds = self._began = 0.0  # of this turn, until and since the last wait

    @torch.inference_mode()
    def advance(self, rows: Running, schedule: Schedule) -> Generator[None, None, bool]:
        """Start a round of these rows and apply the oldest one that is under way, in the order of the starter's depth.

        Yields where another process is asked; returns whether it was.
        """
        self._seconds, self._began = 0.0, time.perf_counter()
        starter = next(starter for starter in self._starters if starter.can_start(rows))
        is_asked = False
        if len(self._under_way) <= starter.depth:
            if is_asked := starter.ask(rows, schedule):
                yield from self._wait()
            started = starter.start(rows, schedule, self._under_way[-1] if self._under_way else None)
            if started is not None:
                self._under_way.append(started)
                if len(self._under_way) <= starter.depth:
                    return is_asked
        assert self._under_way, "a starter without a round before must start one"
        oldest = self._under_way.popleft()
        if must_wait := not oldest.verdicts.is_ready:
            yield from self._wait()
        self._apply(oldest, oldest.read(rows, self._under_way[-1] if self._under_way else None))
        return is_asked or must_wait

    def _apply(self, started: Started, decided: list[Decided]) -> None:
        """Commit what a round has decided, and learn from it.

        Rows whose logits are not finite come last: they are read again, for which no page may be free, and the others
        must go on even if that happens in each round.
        """
        if not all(verdict.is_finite for *_, verdict in decided):
            decided = sorted(decided, key=lambda each: not each[2].is_finite)
        for slot, sequence, verdict in decided:
            self.commits.commit(slot, sequence, verdict)
            if sequence.finish_reason is not None:
                self._finished.append(sequence)
        if decided:
            num_drafted, num_accepted = [v.num_drafted for *_, v in decided], [v.num_accepted for *_, v in decided]
            started.learn([sequence for _, sequence, _ in decided], num_drafted, num_accepted, self._stop)

    def _stop(self) -> float:
        """Return the seconds of this turn, and count them."""
        seconds = self._seconds + time.perf_counter() - self._began
        self.seconds += seconds
        return seconds

    def drop(self) -> None:
        """Drop the rounds that are under way, and what was planned: their rows begin them anew."""
        self._under_way.clear()
        for starter in self._starters:
            starter.drop()

    def take_finished(self) -> list[Sequence]:
        """Return the rows that have finished, each once."""
        finished, self._finished = self._finished, []
        return finished

    def _wait(self) -> Iterator[None]:
        """Let others go on; this time is not the round's."""
        self._seconds += time.perf_counter() - self._began
        yield
        self._began = time.perf_counter()
