"""MasksBeside: masks that are computed in another thread, while this one computes the forward of the round on the CPU.

All that a mask depends on is known before the forward: the committed tokens and the drafted ones. So the masks of all
rows are there when the logits are, and tokens are picked among those that a grammar allows: no pick has to be checked,
or made again. On a GPU no thread is needed, since the host waits for the device anyway (`judging.judge`).

Shapes: R rows with a grammar, J positions, W words of 32 token ids.
"""

import os
import time
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import torch

from decoding.cpu.wait import Bell
from decoding.grammar.matcher import Place, masks_at_once
from decoding.sampling.token_masks import TokenMasks

if TYPE_CHECKING:
    from decoding.sampling.judging import ScoreRequest

_MOST_WAITED = 0.5  # of the time of a forward, on average; a check of picks takes time, too
_DECAY = 0.9  # of that average, per round: one round in which the machine stood still says little
_PAUSE = 64  # rounds
_Answers = SimpleQueue[TokenMasks | BaseException | None]


class MasksBeside:
    """The masks of one round at a time. Rounds do without them for a while if they take longer than the forward."""

    def __init__(self) -> None:
        """Begin with nothing asked for."""
        self._wanted: ScoreRequest | None = None  # not asked for yet
        self._answers: _Answers | None = None
        self._began = 0.0
        self._waited = 0.0  # of the time of a forward, lately
        self._num_paused = 0

    def begin(self, request: "ScoreRequest", when_busy: Callable[[Callable[[], None]], None]) -> None:
        """Begin to compute the masks of a request, as soon as `when_busy` calls what it is given.

        A thread that needs the interpreter while this one does holds it up, so they begin where this one leaves it
        (`LocalTarget.when_busy`). Until `take` no other thread may use the rows' matchers.
        """
        self._drop()
        if not request.rows.have_grammars:
            return
        if self._num_paused:
            self._num_paused -= 1
            return
        request.draft_on_host  # noqa: B018 - read by this thread, which may wait for it
        self._wanted = request
        when_busy(self._start)

    def _start(self) -> None:
        """Ask for what is wanted, unless it is not wanted any more."""
        request, self._wanted = self._wanted, None
        if request is not None:
            questions = _questions()  # first: if its thread cannot be started, no answer is awaited
            self._answers, self._began = SimpleQueue(), time.perf_counter()
            questions.put(request, self._answers)

    def take(self) -> TokenMasks | None:
        """Return the masks once they are there; None if there are none (`masks_of`), or none were begun."""
        self._wanted = None
        if self._answers is None:
            return None
        asked = time.perf_counter()
        try:
            found = self._answers.get()
        except BaseException:  # an interrupt: behind it, the rows' matchers are used by no other thread
            self._drop()
            raise
        self._answers = None
        waited = min(1.0, (time.perf_counter() - asked) / max(asked - self._began, 1e-9))
        self._waited = _DECAY * self._waited + (1 - _DECAY) * waited
        if found is None or self._waited > _MOST_WAITED:
            self._waited, self._num_paused = 0.0, _PAUSE
        if isinstance(found, BaseException):
            raise found
        return found

    def _drop(self) -> None:
        """Wait for masks that were not taken, since an interrupt came between: else two threads use one matcher."""
        self._wanted = None
        if self._answers is not None:
            self._answers.get()
            self._answers = None


def masks_of(request: "ScoreRequest") -> TokenMasks | None:
    """Return the masks of all rows with a grammar, as `TokenMasks.of` does; None where `masks_at_once` has none."""
    sequences, (drafted, num_drafted) = request.rows.sequences, request.draft_on_host
    rows = tuple(row for row, sequence in enumerate(sequences) if sequence.matcher is not None)
    places = [
        Place(sequence.matcher, sequence.output_token_ids, drafted[row][: num_drafted[row]])
        for row, sequence in enumerate(sequences)
        if sequence.matcher is not None
    ]
    packed = masks_at_once(places, 1 + max(map(len, drafted)))
    if packed is None:
        return None
    return TokenMasks(rows, torch.from_numpy(packed))


class _Questions:
    """A thread that computes the masks of all engines in this process, one request at a time."""

    def __init__(self) -> None:
        self._asked = SimpleQueue[tuple["ScoreRequest", _Answers]]()
        self._bell = Bell()
        Thread(target=self._answer, name="masks", daemon=True).start()

    def put(self, request: "ScoreRequest", answers: _Answers) -> None:
        """Ask for the masks of a request."""
        self._asked.put((request, answers))
        self._bell.ring()

    def _answer(self) -> None:
        while True:
            num_rung = self._bell.num_rung
            if self._asked.empty():
                self._bell.wait(num_rung)
            request, answers = self._asked.get()
            self._bell.note_question()
            try:
                answers.put(masks_of(request))
            except BaseException as error:  # noqa: BLE001 - for the thread that asked
                answers.put(error)
            answers.put(None)  # for `_drop`, if an interrupt came when the first had just been taken


@cache
def _questions() -> _Questions:
    return _Questions()


os.register_at_fork(after_in_child=_questions.cache_clear)  # the child has the queue, and not its thread
