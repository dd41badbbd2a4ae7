"""Trials: which of several drafters drafts, or none, decided by the clock.

A plan weighs what drafts cost against what they yield. What a drafter costs beside its drafts (looking up, learning,
reading features, planning) is spent in every round, so it is no part of that. Now and then some rounds are done in
another way: without a drafter, or with another one. The fastest way goes on; a drafter must be a little faster than
rest, for rounds do not show all that it costs. Trials come so rarely that they lose a small share of the time.

A machine that does other work is now faster and now slower, for seconds. So a trial is compared with rounds of the
settled way before it and behind it, and what is tried goes on only after those behind; if it was only a little faster,
after a second trial. A trial that is clearly slower or clearly faster is decided at its own end, and so is the first
one of all where rest is a tenth faster: the drafter that an engine begins with has shown nothing yet.

A head reads the target's features, which cost time, and a row that has missed some cannot draft again. So a trial
without them has two parts where a head has settled: features go on in the first one, and the second one, without them,
is only begun if it could be the faster way. The second part is compared with rounds before it alone: behind it the rows
could not draft. Before a head is tried beside a drafter, features go on until most rows can draft with it.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from decoding.pace.compared import Evidence, Round, Tally, UsualSpeed, num_tokens_of, speed_of

REST = -1  # the way without a drafter; that of a drafter is its number
_FIRST = 16  # rounds before the first trial, at least
# And rounds of a row, so that acceptance is known; fewer if drafts look slow.
_FIRST_ROW_ROUNDS, _FEWER_ROW_ROUNDS = 128, 32
_LENGTH = 12  # rounds of a trial that count, at least
_ROW_ROUNDS = 24  # and rounds of a row: how many tokens a row accepts differs much from round to round
_SLOW_LENGTH = 4  # and fewer, but these, where the way that is tried is clearly slower
_SLOW, _FAST = 0.75, 1.33  # times the settled way's speed: less is clearly slower, more is clearly faster
_SURE = 1.1  # times the settled way's speed: what is faster by less is tried once more before it goes on
_SETTLED = 2  # times the rounds of a trial: as many of the settled way before it, and behind it, are compared with it
_SKIPPED = 2  # rounds after a change: a drafter reads what it missed, once
_INTERVAL, _LONG_INTERVAL = 96, 384  # rounds between trials after a change, and after one to a clearly faster way
_LONGEST = 4096  # and at most, where nothing changes and little is lost
_MAX_LOSS = 1 / 128  # of the time until the next trial, lost in a trial of the slower way
_LATEST = 65536  # rounds until the next trial, however much the last one lost: the machine may have stood still
_GAIN = 1.05  # times the speed of rest: a drafter that wakes must be this much faster, as other work blurs every time
_LEAST_GAIN = 1.02  # and one that goes on this much: rounds do not show all that it costs, such as features of prompts
_BETTER = 1.02  # times the speed of the settled drafter: another one must be this much faster
_MAX_FEATURES = 0.35  # of the time of a round without drafts: what features cost at most, in small models
_CLEARLY = 1.5  # times plain decoding as the cost table has it: a drafter that is this fast needs no trial


@dataclass
class Trials:
    """In which way rounds are done now, and how fast ways were lately."""

    # Of each drafter: whether it reads the target's features, and they take time. The first one begins.
    has_features: Seq[bool] = (False,)
    clearly: float = _CLEARLY  # rest is not tried while rounds with drafts are more times as fast
    way: int = field(default=0, init=False)  # of the next round
    settled: int = field(default=0, init=False)  # the way that goes on
    drafter: int = field(default=0, init=False)  # that drafts, or that rests
    keeps_features: bool = field(default=False, init=False)  # whether those of the settled way go on, which soon ends
    prepared: int | None = field(default=None, init=False)  # a head whose features go on, to be tried soon
    is_prepared: bool = field(default=True, init=False)  # whether most rows could draft with it now

    def __post_init__(self) -> None:
        """Begin with the first drafter."""
        self._lately: deque[Round] = deque(maxlen=_SETTLED * max(_LENGTH, _ROW_ROUNDS))  # of the way that is settled
        self._tried: list[Round] = []
        self._tried_before: list[Round] = []  # in the first part of a trial that has two
        self._waited: list[Round] = []  # of a trial, until most rows could draft; what waking took is one, too
        self._behind: list[Round] | None = None  # rounds of the settled way since a trial that is not decided
        self._challenger = REST  # of the trial that is under way, or is not decided, or was the last one
        self.tallies = {way: Tally() for way in (*range(len(self.has_features)), REST)}
        self._num_before = dict.fromkeys(self.tallies, _FIRST)  # rounds before each way's trial
        self._intervals = dict.fromkeys(self.tallies, _INTERVAL)
        self._num_row_rounds = 0
        self._rest_speed = 0.0  # when a drafter was last compared with it
        self._usual = UsualSpeed()
        self._is_second = False  # whether the next trial, or that of now, tries once more what seemed faster
        self.evidence = Evidence()  # of drafters beside the settled one

    @property
    def is_resting(self) -> bool:
        """Whether the next round is done without a drafter."""
        return self.way == REST

    @property
    def is_trial(self) -> bool:
        """Whether the way of now is tried, and not settled."""
        return self.way != self.settled

    @property
    def awake(self) -> frozenset[int]:
        """The drafters that hear of everything: that of now, and the settled one if it drafts again behind a trial.

        In a rest that goes on none does.
        """
        if self.way == self.settled and not self.keeps_features and self.prepared is None:  # as in most rounds
            return frozenset() if self.way == REST else frozenset([self.way])
        stays = self.keeps_features or (self.is_trial and not self._reads(self.settled))
        more = [self.drafter] + [self.settled] * stays + [self.prepared] * (self.prepared is not None)
        return frozenset(way for way in more if way not in (None, REST))

    def forget_rounds(self) -> None:
        """Forget how fast rounds were lately, since something else has changed them; the next trial comes later.

        A trial that is under way, or is not decided, ends without a change.
        """
        self._turn_to(self.settled)
        self.keeps_features, self.prepared = False, None
        self._lately.clear()
        self._behind, self._is_second = None, False
        self._usual = UsualSpeed()
        self._put_off(_FIRST)

    def begin_with(self, way: int, ratios: Mapping[int, float]) -> None:
        """Let a way go on that others found to be the fastest, if nothing was tried here; else try it soon.

        What is clearly slower by the `ratios` of speeds over that one's is tried later.
        """
        if way == self.settled:
            return
        if any(tally.num_trials for tally in self.tallies.values()):
            self._num_before[way] = min(self._num_before[way], _FIRST)
            return
        self.forget_rounds()
        self._settle(way)
        for other, ratio in ratios.items():
            if ratio < _SLOW:
                self._num_before[other] = self._intervals[other] = _LONG_INTERVAL

    def _reads(self, way: int) -> bool:
        return way != REST and self.has_features[way]

    def _turn_to(self, way: int) -> None:
        self.way = way
        if way != REST:
            self.drafter = way

    def _settle(self, way: int) -> None:
        self.settled = way
        self._turn_to(way)

    def _put_off(self, num_rounds: int) -> None:
        self._num_before = {way: max(before, num_rounds) for way, before in self._num_before.items()}

    def observe(self, done: Round, num_rows: int) -> bool:
        """Learn what a round of `num_rows` rows yielded and took; return whether another way is settled now."""
        settled, is_trial = self.settled, self.is_trial
        self.tallies[self.way].add(done, num_rows, is_timed=not is_trial or len(self._tried) >= _SKIPPED)
        self._num_row_rounds += num_rows
        if is_trial or self._behind is not None or self.prepared is not None:
            self._observe(done)
        else:
            self._settled(done)
        return settled != self.settled

    def wait_for_rows(self, done: Round) -> None:
        """Take a round in which most rows cannot draft: all that it shows is a part of what a trial costs."""
        if self.is_trial:
            self._waited.append(done)

    def _observe(self, done: Round) -> None:
        if self.is_trial:
            self._tried.append(done)
            if len(self._tried) <= _SKIPPED:
                self._num_row_rounds = 0
            elif self._num_row_rounds >= _ROW_ROUNDS and (
                len(self._tried) >= _SKIPPED + _LENGTH or self._is_clearly_slower()
            ):
                self._go_on()
        elif self._behind is not None:
            self._behind.append(done)
            if len(self._behind) - _SKIPPED >= _SETTLED * (len(self._tried) - _SKIPPED):
                self._decide()
        elif self.prepared is not None:
            self._waited.append(done)
            if self.is_prepared:
                self._begin(self.prepared)

    def _settled(self, done: Round) -> None:
        self._lately.append(done)
        num_before, settled = self._num_before, self.settled
        for way in num_before:
            num_before[way] -= 1
        if not num_before[settled] % _FIRST:
            self._watch_speed()
        if settled != REST and self._rest_speed and self._is_slower_than_rest_was():
            self._num_before[REST] = 0
        due = [way for way, before in self._num_before.items() if before <= 0 and way != settled]
        if not due or len(self._lately) < _LENGTH:  # with which a trial is compared
            return
        num_row_rounds = self.tallies[self.settled].num_row_rounds
        if num_row_rounds < _FIRST_ROW_ROUNDS:
            looks_slow = num_row_rounds >= _FEWER_ROW_ROUNDS and speed_of(self._lately) < 1
            if self.settled == REST or not looks_slow:
                return
        way = min(due, key=lambda each: (self._num_before[each], each))  # of several rest, which reads nothing
        if way == REST and speed_of(self._lately) > self.clearly:
            self._is_second = False
            self._wait(way, self._longer_interval(way))
            return
        self._waited = []
        if self.settled != REST and self._reads(way):
            self.prepared, self.is_prepared = way, False
            return
        self._begin(way)

    def _begin(self, way: int) -> None:
        self.prepared, self._challenger = None, way
        self.keeps_features = self._reads(self.settled)
        self.tallies[way].num_trials += 1
        self._turn_to(way)
        self._tried, self._tried_before = [], []

    def _watch_speed(self) -> None:
        """Try all ways soon if the settled one is much slower than it used to be: the rows may be other ones."""
        if len(self.has_features) == 1 or len(self._lately) < (self._lately.maxlen or 0):
            return
        if self._usual.has_dropped(speed_of(self._lately)):
            self._num_before = dict.fromkeys(self._num_before, 0)
            self._intervals = dict.fromkeys(self._intervals, _INTERVAL)
            self.evidence = Evidence()

    def _is_slower_than_rest_was(self) -> bool:
        """Tell whether drafts that seemed to pay were slower lately than rest was when both were compared last."""
        if self._num_before[REST] % _FIRST or len(self._lately) < (self._lately.maxlen or 0):
            return False
        return speed_of(self._lately) < self._rest_speed

    @property
    def _compared(self) -> tuple[list[Round], list[Round]]:
        """The rounds of the trial that count, and those of the settled way that they are compared with."""
        counted = self._tried[_SKIPPED:]
        before = list(islice(reversed(self._lately), _SETTLED * len(counted)))
        return counted, before + (self._behind or [])[_SKIPPED:]

    def _is_clearly_slower(self) -> bool:
        counted, settled = self._compared
        return len(counted) >= _SLOW_LENGTH and speed_of(counted) < _SLOW * speed_of(settled)

    def _go_on(self) -> None:
        """End a trial, or the first part of it."""
        counted, settled = self._compared
        ratio = speed_of(counted) / speed_of(settled)
        if self.keeps_features and not self._reads(self.way) and ratio * (1 + _MAX_FEATURES) > 1:
            self.keeps_features = False
            self._tried_before, self._tried = self._tried, []
            return
        self._turn_to(self.settled)
        is_first = self._challenger == REST and sum(tally.num_trials for tally in self.tallies.values()) == 1
        if _SLOW < ratio < (_SURE if is_first else _FAST) and not self._tried_before:
            self.keeps_features, self._behind = False, []
        else:
            self._decide()

    def _decide(self) -> None:
        """Let the faster way go on. The settled way is that of now."""
        counted, settled = self._compared
        way, is_second = self._challenger, self._is_second
        self.keeps_features = False
        behind, self._behind = self._behind or [], None
        if behind:
            self._lately.clear()
            self._lately.extend(behind[_SKIPPED:])
        needed = _GAIN if self.settled == REST else 1 / _LEAST_GAIN if way == REST else _BETTER
        ratio, sure = speed_of(counted) / speed_of(settled), _SURE
        if REST not in (way, self.settled):
            ratio, contradicts = self.evidence.add(way, counted, settled)
            sure = inf if contradicts else sure
        # A trial in which rows have missed features is not repeated: they could not draft for longer still.
        self._is_second = needed < ratio < sure and not is_second and not self._tried_before
        if self._is_second:
            self._lately.clear()
            self._put_off(_FIRST + 1)
            self._num_before[way] = _FIRST
            return
        if REST in (way, self.settled):
            self._rest_speed = speed_of(counted if way == REST else settled)
        if ratio > needed:
            was, is_dear = self.settled, self._reads(self.settled)
            self.evidence.turn(self.settled, way)
            self._settle(way)
            self._lately.clear()
            self._usual = UsualSpeed()
            # Rows that are under way cannot draft when a head wakes.
            self._wait(was, _LONG_INTERVAL if ratio > _FAST or is_dear else _INTERVAL)
            return
        # Tokens that the settled way would have written beyond the trial's in its time, and the rounds they take.
        tried = self._waited + self._tried_before + self._tried
        num_lost = speed_of(settled) * sum(each.time for each in tried) - num_tokens_of(tried)
        num_rounds = num_lost * len(settled) / num_tokens_of(settled)
        num_rounds *= len(self.has_features) / _MAX_LOSS  # all drafters share what may be lost
        self._wait(way, max(self._longer_interval(way), min(int(num_rounds), _LATEST)))

    def _longer_interval(self, way: int) -> int:
        return min(2 * self._intervals[way], _LONGEST)

    def _wait(self, way: int, interval: int) -> None:
        self._num_before[way] = self._intervals[way] = interval
