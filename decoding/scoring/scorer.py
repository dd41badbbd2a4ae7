"""Scorer: scored texts over slots of their own, in forwards that many texts share.

A forward takes up to a number of tokens, of as many branches as there are slots. A branch whose first tokens stand in
another slot copies their keys and values, or takes that slot over where it is free, and what was found behind them;
while they are being read there, it waits. So a prompt is read once for all of its continuations, also where each comes
as a text of its own, and the beginning that a file's prompts share is read once for all of them. Slots are as long as
the longest text that waits: many short ones, or few long ones, of as much memory.

A branch over which something failed runs alone, and so do those that were beside it: the text that is the reason fails
alone.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Set
from itertools import islice

from decoding.network.target import Target
from decoding.sampling.logprobs import Stretch
from decoding.scoring.branch import Branch, branches_of, collect
from decoding.scoring.slot import Slot, find_shared
from decoding.scoring.text import ScoredText

_MAX_ROWS = 64  # of a forward
_SHORTEST = 64  # positions of a slot
_WINDOW = 64  # waiting branches that are looked at
_WORTH_AWAITING = 32  # tokens, or half of a branch: to wait for fewer that another one reads does not pay
_MAX_LOSSES = 2  # of the target over a branch that has not gone on in between
_NOT_FINITE = "the target's logits are not finite behind this text; its weights or its type of numbers are the reason"


class Scorer:
    """Texts in, finished texts out. Like an engine it is driven by one thread."""

    def __init__(self, share: Callable[[], Target], max_tokens: int, max_model_len: int, num_slots: int) -> None:
        """Score by what `share` returns, at most `max_tokens` in a forward.

        The slots have together no more positions than `num_slots` of `max_model_len`.
        """
        self._share, self._max_tokens, self._max_model_len = share, max_tokens, max_model_len
        self._num_slots = num_slots
        self._target: Target | None = None
        self._length = 0  # of each slot
        self._num_begun = 0  # branches: those that began first are read first
        self._is_narrow = False  # whether there is one slot, for a branch that runs alone
        self._slots: list[Slot] = []
        self._waiting: deque[Branch] = deque()
        # Of branches that wait for another one: its slot, itself, and how many tokens it must have read.
        self._awaited: dict[Branch, tuple[Slot, Branch | None, int]] = {}
        self._unfinished: dict[ScoredText, tuple[list[Branch], set[Branch]]] = {}  # all branches, and those to do
        self._ended: list[ScoredText] = []

    @property
    def has_work(self) -> bool:
        """Whether `advance` would return or read anything."""
        return bool(self._unfinished or self._ended)

    def submit(self, texts: Iterable[ScoredText]) -> None:
        """Queue texts, those of about one length side by side. One that is finished comes back as it is."""
        for text in sorted(texts, key=_length_in_bits, reverse=True):
            branches = [] if text.is_finished else list(branches_of(text))
            if branches:
                self._unfinished[text] = branches, set(branches)
                self._waiting.extend(branches)
            else:
                text.scores, text.is_finished = [[] for _ in text.continuations], True
                self._ended.append(text)

    def drop(self, texts: Set[ScoredText]) -> None:
        """Forget texts; they do not come back."""
        for text in texts:
            self._unfinished.pop(text, None)
        self._ended = [text for text in self._ended if text not in texts]
        self._waiting = deque(branch for branch in self._waiting if branch.text in self._unfinished)
        self._awaited = {branch: what for branch, what in self._awaited.items() if branch.text in self._unfinished}
        for number, slot in enumerate(self._slots):
            if slot.branch is not None and slot.branch.text in texts:
                slot.branch = None
                self._clear(number)  # nothing tells whether its values are finite

    def advance(self) -> list[ScoredText]:
        """Do one forward, and return the texts that are finished.

        If it raises, for lack of memory say, nothing is lost: see `go_back`.
        """
        self._seat()
        if self._reading:
            self._read()
        return self.take_ended()

    def take_ended(self) -> list[ScoredText]:
        """Return the texts that are finished, each once."""
        ended, self._ended = self._ended, []
        return ended

    def shrink(self, num_slots: int) -> None:
        """Take no more positions than `num_slots` of the longest text need, from the next slots on."""
        self._num_slots = num_slots

    def go_back(self, why: str | None, *, is_loss: bool = False) -> None:
        """Give up the slots; what was read there waits in front, with the scores that it has.

        With `why`, something failed over the texts in flight: they run alone from now on, and one that was alone fails
        for that reason. If the target was lost over it, only when that happens a second time.
        """
        blamed = [slot.branch for slot in self._reading if slot.branch is not None]
        self._waiting.extendleft(reversed(blamed))
        if is_loss:  # there is nothing to give back
            self._target = None
        self.release()
        if why is None:
            return
        for branch in blamed or list(islice(self._waiting, 1)):
            branch.num_losses += is_loss
            if branch.is_suspect and (not is_loss or branch.num_losses >= _MAX_LOSSES):
                self._fail(branch.text, why)
            branch.is_suspect = True

    def clear(self) -> None:
        """Forget all texts, and give the slots back."""
        self._waiting.clear()
        self._awaited.clear()
        self._unfinished.clear()
        self._ended.clear()
        self.release()

    def release(self) -> None:
        """Give the slots back, for whose texts `go_back` cares."""
        target, self._target, self._slots = self._target, None, []
        if target is not None:
            target.release()

    @property
    def _reading(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.branch is not None]

    def _seat(self) -> None:
        """Give slots to waiting branches."""
        if any(slot.branch is not None and slot.branch.is_suspect for slot in self._slots):
            return
        awaiting: list[Branch] = []
        try:
            while self._waiting and len(awaiting) < _WINDOW:
                branch = self._waiting[0]
                if not self._fits(branch):
                    if self._reading or awaiting:
                        break
                    self._allocate()
                free = [slot for slot in self._slots if slot.branch is None]
                if not free or (branch.is_suspect and self._reading):
                    break
                donor, num_shared = (None, -1) if self._still_waits(branch) else self._donor_of(branch, free)
                if num_shared < 0:
                    awaiting.append(self._waiting.popleft())
                    continue
                self._begin(branch, donor, num_shared, free)
                self._waiting.popleft()  # not before it has its slot: what raises until then must not lose it
                if branch.is_suspect:
                    break
        finally:
            self._waiting.extendleft(reversed(awaiting))

    def _fits(self, branch: Branch) -> bool:
        """Tell whether the slots are long enough, and not so long that there could be many more."""
        if self._target is None or len(branch.token_ids) > self._length:
            return False
        if branch.is_suspect or self._is_narrow:
            return branch.is_suspect and self._is_narrow
        return len(self._slots) == _MAX_ROWS or self._fitting_length() * 4 > self._length

    def _fitting_length(self) -> int:
        longest = max(len(branch.token_ids) for branch in islice(self._waiting, _WINDOW))
        rounded = max(_SHORTEST, 1 << (longest - 1).bit_length())
        return min(rounded, self._max_model_len)

    def _allocate(self) -> None:
        length, self._is_narrow = self._fitting_length(), self._waiting[0].is_suspect
        most = min(self._num_slots * self._max_model_len, max(self._max_model_len, 4 * self._max_tokens))
        num_slots = 1 if self._is_narrow else max(1, min(_MAX_ROWS, most // length))
        if self._target is None:
            self._target = self._share()
        self._slots = []
        self._target.allocate(num_slots, length)
        self._length, self._slots = length, [Slot() for _ in range(num_slots)]

    def _donor_of(self, branch: Branch, free: list[Slot]) -> tuple[Slot | None, int]:
        """Find the slot that has most of the branch's first tokens, and how many; -1 if it pays to wait for more."""
        found = find_shared(branch, self._slots, free)
        worth_awaiting = min(_WORTH_AWAITING, len(branch.token_ids) / 2)
        if found.leader is not None and found.num_soon - found.num_shared >= worth_awaiting:
            self._awaited[branch] = found.leader, found.leader.branch, found.num_soon
            return None, -1
        if found.donor is not None and not self._is_finite(found.donor, found.num_shared):
            return None, 0
        return found.donor, found.num_shared

    def _still_waits(self, branch: Branch) -> bool:
        """Tell whether what a branch waits for is still being read."""
        if branch not in self._awaited:
            return False
        slot, leader, num_tokens = self._awaited[branch]
        if slot in self._slots and slot.branch is leader and slot.num_held < num_tokens:
            return True
        del self._awaited[branch]
        return False

    def _is_finite(self, slot: Slot, num_tokens: int) -> bool:
        """Tell whether a slot may be copied: a value that is not finite would spread to texts that are sound."""
        assert self._target is not None
        assert self._target.cache is not None
        if slot.num_finite < num_tokens and self._target.cache.is_finite(self._slots.index(slot), num_tokens):
            slot.num_finite = num_tokens
        return slot.num_finite >= num_tokens

    def _begin(self, branch: Branch, donor: Slot | None, num_shared: int, free: list[Slot]) -> None:
        assert self._target is not None
        assert self._target.cache is not None
        if donor is not None and donor.source is not None:
            branch.take_over(donor.source, num_shared)
        if branch is self._unfinished[branch.text][0][0] and not branch.num_read:
            branch.text.num_cached_tokens = num_shared
        if branch.is_done:  # another one has read all of it
            self._done(branch)
            return
        slot = donor if donor is not None and donor in free else min(free, key=lambda each: each.num_held)
        if donor is not None and donor is not slot:
            self._target.cache.copy(self._slots.index(donor), self._slots.index(slot), num_shared)
        num_finite = min(num_shared, donor.num_finite) if donor is not None else 0
        slot.source, slot.num_held, slot.num_finite, slot.branch = branch, num_shared, num_finite, branch
        self._num_begun += 1
        slot.since = self._num_begun

    def _read(self) -> None:
        """Read the next tokens of the branches, and take what was asked for behind them."""
        assert self._target is not None
        room, stretches = self._max_tokens, list[Stretch]()
        rows: list[tuple[Slot, Branch]] = []
        for number, slot in sorted(enumerate(self._slots), key=lambda numbered: numbered[1].since):
            if slot.branch is not None and room:
                known = max(0, slot.branch.num_read - slot.num_held)  # read again after a loss, all at once
                num_tokens = min(known + room, len(slot.branch.token_ids) - slot.num_held)
                room -= max(0, num_tokens - known)
                stretches.append(slot.branch.stretch(number, slot.num_held, num_tokens))
                rows.append((slot, slot.branch))
        found = self._target.logprobs(stretches)
        for (slot, branch), stretch, logprobs in zip(rows, stretches, found, strict=True):
            slot.num_held += len(stretch.token_ids)
            branch.logprobs += logprobs
            if slot.num_held > branch.num_read:
                branch.num_read, branch.num_losses = slot.num_held, 0
            if any(math.isnan(entry.logprob) for entry in logprobs):
                self._fail(branch.text, _NOT_FINITE)
            elif logprobs:
                slot.num_finite = slot.num_held
            if branch.is_done and branch.text in self._unfinished:
                slot.branch = None
                self._done(branch)

    def _clear(self, number: int) -> None:
        """Clear a slot: a value left in it that is not finite would spoil the scores of the next text there."""
        assert self._target is not None
        assert self._target.cache is not None
        self._target.cache.zero(number)
        self._slots[number] = Slot()

    def _done(self, branch: Branch) -> None:
        branches, to_do = self._unfinished[branch.text]
        to_do.discard(branch)
        if not to_do:
            del self._unfinished[branch.text]
            collect(branch.text, branches)
            self._ended.append(branch.text)

    def _fail(self, text: ScoredText, why: str) -> None:
        if text not in self._unfinished:  # another branch of it has failed
            return
        self.drop({text})
        text.fail(why)
        self._ended.append(text)


def _length_in_bits(text: ScoredText) -> int:
    longest = max(map(len, text.continuations), default=0)
    return (len(text.prompt_token_ids) + longest).bit_length()
