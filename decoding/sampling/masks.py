"""Masks: which tokens the grammars of some rows allow at the positions of a round, and how they are computed in time.

All that a mask depends on is known before the forward: the committed tokens and the drafted ones. So `MasksBeside`
computes those of all rows in another thread, while this one computes the forward of the round on the CPU; they are
there when the logits are, and no pick has to be checked, or made again. On a GPU no thread is needed, since the host
waits for the device anyway (`judging.judge`).

Shapes: B rows of a round, R of them with a grammar, J positions, W words of 32 token ids, V vocabulary.
"""

import os
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from itertools import compress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import torch

from decoding.cpu.wait import Bell
from decoding.device import to_device
from decoding.grammar.masks_at_once import Place, masks_at_once
from decoding.grammar.token_table import Mask
from decoding.sampling.cuts import NEVER
from decoding.sequence import Sequence

if TYPE_CHECKING:
    from decoding.sampling.judging import ScoreRequest


@dataclass(frozen=True)
class TokenMasks:
    """The masks of the rows that have a grammar."""

    rows: tuple[int, ...]
    packed_RJW: torch.Tensor  # int32, on the CPU: bit i of word w stands for token id 32 * w + i

    @classmethod
    def of(
        cls,
        sequences: Seq[Sequence],
        drafted: Seq[Seq[int]],
        first: int,
        num_positions: int,
        num_drafted: Seq[int] | None = None,
        among: Collection[int] | None = None,
    ) -> "TokenMasks":
        """Return the masks at `num_positions` positions, those from `first` drafted tokens on.

        They are those of all rows that have a grammar, or of those `among` these rows. `drafted` has the tokens of each
        row behind its committed ones. Behind the first position as many have a meaning as `num_drafted` says of a row
        (None: all). Everything is allowed at the others, and behind a token that ends the text or that the grammar does
        not allow.
        """
        rows = tuple(
            row
            for row, sequence in enumerate(sequences)
            if sequence.matcher is not None and (among is None or row in among)
        )
        masks: list[list[Mask | None]] = []
        for row in rows:
            matcher, committed, tokens = sequences[row].matcher, sequences[row].output_token_ids, drafted[row]
            assert matcher is not None, "these rows have one"
            last = first + (num_positions - 1 if num_drafted is None else num_drafted[row])
            own: list[Mask | None] = []
            for place in range(first, first + num_positions):
                # Behind a position without a meaning no other has one.
                is_known = place <= last and (not own or own[-1] is not None)
                own.append(matcher.mask(committed, tokens[:place]) if is_known else None)
            masks.append(own)
        has_masks = [any(mask is not None for mask in own) for own in masks]
        return cls(tuple(compress(rows, has_masks)), _stacked(list(compress(masks, has_masks))))

    def apply(self, logits_BJV: torch.Tensor) -> torch.Tensor:
        """Return a copy of the logits in which tokens that are not allowed have -inf; without masks, the logits."""
        if not self.rows:
            return logits_BJV
        num_rows, _, vocab_size = logits_BJV.shape
        allowed_RJV = self._unpacked(vocab_size, logits_BJV.device)
        if len(self.rows) == num_rows:
            return torch.where(allowed_RJV, logits_BJV, NEVER)
        rows_R = to_device(list(self.rows), logits_BJV.device)
        return logits_BJV.index_copy(0, rows_R, torch.where(allowed_RJV, logits_BJV[rows_R], NEVER))

    def _unpacked(self, vocab_size: int, device: torch.device) -> torch.Tensor:
        """Return the masks as bool [R, J, V] on a device, to which they travel packed."""
        if device.type == "cpu":
            bytes_RJX = self.packed_RJW.numpy().view(np.uint8)
            bits_RJV = np.unpackbits(bytes_RJX, axis=-1, count=vocab_size, bitorder="little")
            return torch.from_numpy(bits_RJV).view(torch.bool)
        bytes_RJX1 = self.packed_RJW.view(torch.uint8).to(device, non_blocking=True)[..., None]
        bits_RJX8 = bytes_RJX1 >> torch.arange(8, dtype=torch.uint8, device=device) & 1
        return bits_RJX8.flatten(-2)[..., :vocab_size].bool()


NO_MASKS = TokenMasks((), torch.zeros(0, 0, 1, dtype=torch.int32))


def _stacked(masks: Seq[Seq[Mask | None]]) -> torch.Tensor:
    """Return masks as one tensor; where there is none, every token is allowed."""
    num_words = next((len(mask) for own in masks for mask in own if mask is not None), 1)
    packed_RJW = np.full((len(masks), len(masks[0]) if masks else 0, num_words), -1, dtype=np.int32)
    for index, own in enumerate(masks):
        for place, mask in enumerate(own):
            if mask is not None:
                packed_RJW[index, place] = mask.view(np.int32)
    return torch.from_numpy(packed_RJW)


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
