"""Admission: which sequences get a slot, and how their tokens get into the caches between the rounds.

Tokens are read in chunks, packed end to end, a number of them between two rounds: rows that run wait for a chunk, not
for a prompt. A chunk costs what the rows that wait for it could have written meanwhile, so the budget is that of a full
engine and grows as fewer rows run; when none runs, as many budgets as there are slots are read at once.

A row whose own tokens are scored (`decoding/engine/scored_text.py`) is read like a prompt, with the log-probabilities
that it asks for, and ends then. It takes over what another row was told behind the tokens that both begin with.

A sequence that lost its slot comes back with output. It is read like a prompt, all tokens but the newest, and goes on.

The row that has waited longest gets half of a budget, the shortest rests share the other half: short prompts run soon
and none waits for ever. A row that begins like another one of its scope copies the other's keys and values, in target
and draft, or takes over its slot where that is free. If the other row is itself still being read, the newcomer waits
for it. For a drafter that reads the target's features, the last token that they share is read again: what the drafter
keeps of a token follows from the token behind it, too.

Rounds read slots 0..B-1 in place, so rows that run must be there. A newcomer fills any free slot, most often the one
that it will run in; when rows are about to run, a ready row beyond slot B-1 changes places with a row before it that is
not ready. With prompts within the budget that happens only when a slot stays empty; else about once a prompt.
"""

from collections.abc import Iterator, Set
from itertools import islice

from decoding.drafters.base import Drafter
from decoding.engine.rounds.prefix import Resident, grants
from decoding.engine.rounds.prompt_reader import PromptReader
from decoding.engine.rounds.room import Room
from decoding.network.target import SlotCache, Target
from decoding.sampling.logprobs import Stretch
from decoding.sequence import Sequence

# A row waits for another that is being read if that saves at least this many tokens: it costs a forward of its own. One
# that is only scored also waits for half of its tokens, since no later token of it waits.
_WORTH_AWAITING = 32
_NOT_FINITE = "the target's logits are not finite behind this text; its weights or its type of numbers are the reason"


class Admission:
    """The waiting sequences, the slots and the rows in them; nothing else fills caches with prompts."""

    def __init__(self, target: Target, drafter: Drafter, room: Room, max_prefill_tokens: int) -> None:
        """Read at most `max_prefill_tokens` between two rounds of full slots, of the rows that wait for room."""
        self._target, self._drafter, self.room = target, drafter, room
        self._residents, self._waiting = room.residents, room.waiting
        self.reader = PromptReader(drafter, len(self._residents))
        self._max_prefill_tokens = max_prefill_tokens
        self._num_seated = 0
        self._finished: list[Sequence] = []  # scored rows, not handed out yet

    @property
    def _cache(self) -> SlotCache:
        assert self._target.cache is not None, "the target's slots are allocated"
        return self._target.cache

    def take_finished(self) -> list[Sequence]:
        """Return the rows that have been scored, each once."""
        finished, self._finished = self._finished, []
        return finished

    def forget(self, rows: Set[Sequence]) -> None:
        """Take rows that are being read out of their slots, which may hold values that are not finite: clear them."""
        for slot, resident in list(self._seated()):
            if resident.sequence in rows:
                self._residents[slot] = None
                self.room.empty(slot)
                self._cache.zero(slot)

    def remove(self, rows: Set[Sequence]) -> None:
        self._residents[:] = [None if r is not None and r.sequence in rows else r for r in self._residents]

    def clear(self) -> None:
        self._residents[:] = [None] * len(self._residents)
        self.reader = PromptReader(self._drafter, len(self._residents))
        self._finished.clear()

    @property
    def in_flight(self) -> list[Sequence]:
        return [resident.sequence for _, resident in self._seated() if not resident.sequence.is_finished]

    @property
    def filling(self) -> list[Sequence]:
        """The sequences whose tokens are being read."""
        return [resident.sequence for _, resident in self._seated() if resident.is_filling]

    def _seated(self) -> Iterator[tuple[int, Resident]]:
        return ((slot, resident) for slot, resident in enumerate(self._residents) if resident is not None)

    def _donors_for(self, newcomer: Resident) -> Iterator[tuple[int, Resident]]:
        """Yield the other residents of the newcomer's scope, whose keys and values it may copy, with their slots."""
        scope = newcomer.sequence.scope.prefixes
        for slot, resident in self._seated():
            if resident is not newcomer and resident.sequence.scope.prefixes == scope:
                yield slot, resident

    def advance(self, max_rows: int) -> list[Sequence]:
        """Fill slots up to `max_rows` rows, read a budget of tokens and return the rows to run: row b is in slot b.

        A row that ran may have given way (`room`): what is under way of its round is then to be dropped.
        """
        self.room.grow()
        if all(resident is not None and resident.is_running for resident in self._residents):
            return [resident.sequence for resident in self._residents if resident is not None]
        self._seat_newcomers(max_rows)
        num_running = sum(resident.is_ready for _, resident in self._seated())
        budget = self._max_prefill_tokens * len(self._residents) // max(1, num_running)
        while True:
            self._release_followers()
            granted = self._grants(budget)
            if not granted:
                break
            self._read(granted)
            budget -= sum(granted.values())
        return self._line_up()

    def _seat_newcomers(self, max_rows: int) -> None:
        # What has been finished for longest is the least likely to be continued.
        free = [slot for slot, r in enumerate(self._residents) if r is None or r.sequence.is_finished]
        free.sort(key=lambda slot: -1 if (resident := self._residents[slot]) is None else resident.number)
        num_kept_free = max(0, len(self._residents) - max_rows)
        while len(free) > num_kept_free and self._waiting:
            newcomer = Resident(self._waiting[0], self._num_seated)
            newcomer.leader, newcomer.num_awaited = self._leader_of(newcomer)
            if newcomer.leader is not None:
                slot = free.pop(0)
                self.room.empty(slot)
                self._residents[slot] = newcomer
            else:
                donor, num_shared = self._donor_of(newcomer, free)
                slot = donor if donor in free else free[0]
                free.remove(slot)
                if not self._begin(slot, newcomer, donor, num_shared):
                    break
            self._waiting.popleft()  # not before it has its slot: what raises until then must not lose the row
            self._num_seated += 1

    def _release_followers(self) -> None:
        """Begin with the rows whose leaders have read what they wait for; where a leader is gone, look for another."""
        for slot, follower in self._seated():
            if follower.leader is None:
                continue
            if follower.leader.num_filled < follower.num_awaited:
                if follower.leader in self._residents:
                    continue
                follower.leader, follower.num_awaited = self._leader_of(follower)
                if follower.leader is not None:
                    continue
            follower.leader = None
            self._begin(slot, follower, *self._donor_of(follower, []))

    def _leader_of(self, newcomer: Resident) -> tuple[Resident | None, int]:
        """Find the resident that is reading what `newcomer` begins with, and how much of it to wait for.

        Return (None, 0) where waiting does not pay. No row waits for a later one, so no rows wait in a circle.
        """
        if not any(resident.is_filling and resident.number < newcomer.number for _, resident in self._seated()):
            return None, 0
        tokens, is_scored = newcomer.tokens_to_read, newcomer.sequence.asked is not None
        best, most, cached = None, 0, 0
        for slot, resident in self._donors_for(newcomer):
            if resident.number < newcomer.number:
                common = resident.num_shareable(newcomer)
                copyable = self._num_copyable(slot, newcomer, resident, common)
                cached = max(cached, self._cache.longest(slot, copyable))
                has_features = resident.sequence.asked is None  # else it may be copied only where none are needed
                is_copied = has_features or is_scored or self._target.tap is None
                if resident.is_filling and is_copied and common > most:
                    best, most = resident, common
        needs_no_forward = most == len(tokens) and (is_scored or not self._drafter.num_read_again)
        worth_awaiting = min(_WORTH_AWAITING, len(tokens) / 2) if is_scored else _WORTH_AWAITING
        if most > cached and (needs_no_forward or most - cached >= worth_awaiting):
            return best, most  # all tokens, or enough of them
        return None, 0

    def _donor_of(self, newcomer: Resident, free: list[int]) -> tuple[int | None, int]:
        """Find the slot with most tokens that the newcomer may copy, a free one if several will do, and how many."""
        donor, num_shared, again = None, 0, self._drafter.num_read_again if newcomer.sequence.asked is None else 0
        for slot, resident in self._donors_for(newcomer):
            copyable = self._num_copyable(slot, newcomer, resident, resident.num_shareable(newcomer))
            cached = self._cache.longest(slot, max(0, copyable - again))
            is_better = cached > num_shared or (cached == num_shared > 0 and slot in free)
            if is_better and resident.is_finite(slot, cached, self._cache):
                donor, num_shared = slot, cached
        return donor, num_shared

    def _num_copyable(self, slot: int, newcomer: Resident, resident: Resident, num_in_common: int) -> int:
        """Return how many of those tokens a newcomer may copy, if there is a state behind them.

        Where features are handed out it copies none that the drafter missed: neither it nor a copy of it could draft.
        """
        num_cached = resident.num_cached(num_in_common)
        if self._target.tap is None or newcomer.sequence.asked is not None:
            return num_cached
        return self._drafter.num_copyable(slot, num_cached)

    def _begin(self, slot: int, newcomer: Resident, donor: int | None, num_shared: int) -> bool:
        """Let a newcomer begin in a slot, which is emptied if there is no memory for it now; tell whether there is."""
        source = None if donor is None else self._residents[donor]
        if donor is not None and donor != slot:
            self._cache.copy(donor, slot, num_shared)
        asked = newcomer.sequence.asked
        has_room = self.room.begin(slot, newcomer, num_shared, self._cache)
        if has_room:
            self.reader.begin(slot, *((donor, num_shared) if asked is None else (None, 0)))
            has_room = self.room.begin(slot, newcomer, num_shared, self._drafter)
        if not has_room:
            self.room.empty(slot)
            return False
        if asked is not None and source is not None and source.sequence.asked is not None:
            asked.take_over(source.sequence.asked, num_shared)
        newcomer.num_filled = num_shared
        if not newcomer.sequence.num_rounds:  # else it was counted when the row came for the first time
            newcomer.sequence.num_cached_tokens = num_shared
        self._residents[slot] = newcomer
        if asked is not None and not newcomer.num_missing:  # another row has read all of it
            self._end(newcomer.sequence)
        return True

    def _end(self, scored: Sequence) -> None:
        scored.finish_reason = "stop"
        self._finished.append(scored)

    def _grants(self, budget: int) -> dict[int, int]:
        """Return how many tokens to read now, by slot."""
        reading = {slot: resident for slot, resident in self._seated() if resident.is_filling and not resident.leader}
        followers = [each for _, each in self._seated() if each.leader and self._cache.has_states]
        return grants(reading, followers, self._drafter.num_read_again, budget)

    def _read(self, granted: dict[int, int]) -> None:
        reading, slots, chunks, starts, heads = list[Resident](), [], [], [], []
        scored = list[tuple[Resident, Stretch]]()
        for slot, num_tokens in granted.items():
            resident = self._residents[slot]
            assert resident is not None
            row, start, end = resident.sequence, resident.num_filled, resident.num_filled + num_tokens
            if row.asked is not None:
                end = max(end, row.asked.num_known)  # all at once: the slots may be lost again and again
                scored.append((resident, Stretch.of_row(row, slot, start, end)))
            else:
                reading.append(resident)
                slots.append(slot)
                starts.append(start)
                chunks.append(row.token_ids[start:end])
                heads.append(row.token_ids[:end])
        if slots:
            self._target.prefill(slots, chunks, starts)
            for resident, head in zip(reading, heads, strict=True):  # not before: a forward may find no page
                resident.num_filled = len(head)
            self.reader.prefill(slots, heads)
        if scored:
            self._score(scored)

    def _score(self, rows: list[tuple[Resident, Stretch]]) -> None:
        """Read stretches of scored rows, and take what they ask for. Their features are not handed out."""
        tap, self._target.tap = self._target.tap, None
        try:
            found = self._target.logprobs([stretch for _, stretch in rows])
        finally:
            self._target.tap = tap
        for (resident, stretch), logprobs in zip(rows, found, strict=True):
            sequence, resident.num_filled = resident.sequence, stretch.start + len(stretch.token_ids)
            assert sequence.asked is not None
            if not sequence.asked.take(logprobs):
                self.forget({sequence})
                sequence.fail(_NOT_FINITE)
                self._finished.append(sequence)
            else:
                if logprobs:
                    resident.num_finite = resident.num_filled
                if not resident.num_missing:
                    self._end(sequence)

    def _line_up(self) -> list[Sequence]:
        """Move all rows that can run to slots 0..B-1, and return them."""
        ready = [slot for slot, resident in self._seated() if resident.is_ready]
        gaps = sorted(set(range(len(ready))) - set(ready))
        for stray, gap in zip([slot for slot in ready if slot >= len(ready)], gaps, strict=True):
            self._swap(stray, gap)
        running = dict(islice(self._seated(), len(ready)))
        newcomers = {slot: resident for slot, resident in running.items() if not resident.is_admitted}
        for resident in newcomers.values():
            resident.is_admitted = True
        if newcomers:
            self.reader.admit(list(newcomers), [resident.sequence for resident in newcomers.values()])
        return [resident.sequence for resident in running.values()]

    def _swap(self, stray: int, gap: int) -> None:
        """Let a row that can run change places with the row in `gap`, if there is one: it cannot run."""
        moved, other = self._residents[stray], self._residents[gap]
        assert moved is not None
        num_kept = other.num_cached(len(other.sequence) - 1) if other is not None else 0
        self._cache.swap(stray, gap, len(moved.sequence) - 1, num_kept)
        self._drafter.swap(stray, gap)
        self._residents[gap], self._residents[stray] = moved, other
