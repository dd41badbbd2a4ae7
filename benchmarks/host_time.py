"""What the host does in a round on a GPU, measured without one: `python -m benchmarks.host_time`.

A lane runs its rounds over recordings that do nothing and whose verdicts are made up, so what is left is Python and the
operations that a GPU would be given one by one. They are counted as `benchmarks/decoder/counts/launches.py` says, and
so are the times at which the host would wait for the device. The time is all that the host does in a round: it reads
the verdicts of one round, commits them, admits rows, plans draft lengths and starts the next round. A GPU is busy
meanwhile with a round that was started before.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch

from benchmarks.decoder.counts.launches import LaunchCounter
from benchmarks.harness import listed, parser_of, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from decoding import SamplingParams, Sequence
from decoding.cache.kv_cache import KVCache
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.lane import Lane
from decoding.engine.rounds.overlapped.inputs import rounded_width
from decoding.engine.rounds.overlapped.rounds import DeviceRounds
from decoding.engine.rounds.overlapped.rounds_ahead import RoundsAhead
from decoding.engine.rounds.overlapped.steps import ModelSteps
from decoding.fused.recordings import Key, Recordings
from decoding.network.language_model import LanguageModel
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import FixedSchedule, Schedule
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import Verdicts

_WARM_UP = 6  # rounds
_PROMPT_TOKENS = 64
_MAX_MODEL_LEN = 4096
# Of the 8B pair on an H100, from its bandwidth (benchmarks/roofline): what a round costs decides the plan alone.
_COSTS = CostTable(((1, 5e-3), (128, 1e-2), (2304, 3e-2)), ((1, 6e-4), (256, 6e-3)), 5e-4, 1e-6)


COLUMNS = (
    ("rows", "num_rows", ""),
    ("operations", "num_operations", ""),
    ("recordings", "num_replays", ""),
    ("waits", "num_waits", ""),
    ("host, us", "microseconds", ".0f"),
)


@dataclass(frozen=True)
class HostTime:
    """What the host did in a round: medians over some rounds."""

    num_rows: int
    num_operations: int  # given to the device one by one, copies included
    num_replays: int  # of recordings
    num_waits: int  # for the device
    seconds: float  # of the processor: other work on the machine does not count


class _Model:
    """A model that is never run, with what a lane asks of one."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.device, self.dtype, self.vocab_size = torch.device("cpu"), torch.bfloat16, vocab_size
        self.eos_token_ids, self.vocabulary_map = frozenset({0}), None
        self.max_positions, self.close_call, self.is_batch_invariant, self.tap = None, 0.0, True, None
        self.cache, self.has_states = KVCache(num_slots, _MAX_MODEL_LEN, self.device), False

    def allocate(self, *sizes: int) -> None:
        return None

    def hand_out(self, tap: object) -> None:
        return None

    def prefill(self, slots: object, token_ids: object, starts: object = None) -> None:
        return None


class _MadeUp(Recordings[None]):
    """Recordings that take no time; each row accepts a number of tokens of its own."""

    def __init__(self) -> None:
        super().__init__(None, "rounds")
        self.num_replays = self.num_drafts = 0

    def run(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.num_replays += 1
        num_rows, _, _, num_drafted, _, _, *of_verdicts = key
        if not of_verdicts:
            self.num_drafts += 1
            return _made_up(num_rows, num_drafted)
        return _verdicts(num_rows, num_drafted)


@cache
def _made_up(num_rows: int, num_drafted: int) -> torch.Tensor:
    return torch.full((num_rows, num_drafted + 1), 7)


@cache
def _verdicts(num_rows: int, num_drafted: int) -> torch.Tensor:
    sevens_BK = torch.full((num_rows, rounded_width(num_drafted)), 7)
    sevens_B, num_drafted_B = torch.full((num_rows,), 7), torch.full((num_rows,), num_drafted)
    accepted_B = torch.arange(num_rows) % (num_drafted + 1)
    return Verdicts(accepted_B, sevens_B, num_drafted_B + 1, torch.ones_like(sevens_B)).columns(
        sevens_BK, num_drafted_B
    )


def measure(num_rows: int, num_drafted: int, vocab_size: int, num_rounds: int, *, is_adaptive: bool) -> HostTime:
    """Run rounds of this many rows at temperature 0.8 and top_p 0.95; medians are of rounds without newcomers."""
    schedule: Schedule = AdaptiveSchedule(_COSTS, num_drafted) if is_adaptive else FixedSchedule(num_drafted)
    lane, recordings = lane_over(schedule, num_rows, vocab_size)
    for _ in range(_WARM_UP):
        lane.advance(num_rows)
    counter = LaunchCounter(torch.device("cpu"))
    seconds, counts = [], []
    for index in range(2 * num_rounds):
        before = recordings.num_replays
        if index % 2:
            with counter.counting():
                lane.advance(num_rows)
            counts.append((counter.counts.launches, recordings.num_replays - before, counter.counts.host_syncs))
        else:
            started = time.thread_time()
            lane.advance(num_rows)
            seconds.append(time.thread_time() - started)
    operations, replays, waits = (int(statistics.median(column)) for column in zip(*counts, strict=True))
    return HostTime(num_rows, operations, replays, waits, statistics.median(seconds))


def lane_over(schedule: Schedule, num_rows: int, vocab_size: int) -> tuple[Lane, _MadeUp]:
    """Return a lane of this many rows, more rows behind them, and models that are never run; and its recordings."""
    target, draft = (cast(LanguageModel, _Model(num_rows, vocab_size)) for _ in range(2))
    params = SamplingParams(max_tokens=512, temperature=0.8, top_p=0.95)
    drafter, recordings = ModelDrafter(draft, vocab_size, num_rows, _MAX_MODEL_LEN), _MadeUp()
    ahead = RoundsAhead(target, drafter, num_rows, None)
    ahead.device_rounds = DeviceRounds(target, ModelSteps(drafter), num_rows, recordings)
    schedule.never_rest()
    lane = Lane(
        target,
        drafter,
        [schedule],
        deque(Sequence.create([row % 997] * _PROMPT_TOKENS, params, row=row) for row in range(8 * num_rows)),
        num_slots=num_rows,
        max_model_len=_MAX_MODEL_LEN,
        max_prefill_tokens=2048,
        rule=COUPLED,
        ahead=ahead,
    )
    return lane, recordings


def main(arguments: Seq[str] | None = None) -> None:
    """Print one line for each number of rows."""
    parser = parser_of("host_time", __doc__)
    flag = parser.add_argument
    flag("--batches", type=listed(int), default=(1, 16, 64, 128, 256), metavar="SIZES", help="numbers of rows")
    flag("--drafted", type=int, default=4, help="tokens that a row drafts in a round (default %(default)s)")
    flag("--vocab", type=int, default=151_936, help="tokens of the vocabulary (default %(default)s)")
    flag("--rounds", type=int, default=60, help="rounds to measure (default %(default)s)")
    flag("--adaptive", action="store_true", help="plan draft lengths by costs, as engines do by default")
    given = parser.parse_args(arguments)
    for name in ("drafted", "vocab", "rounds"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    if min(given.batches, default=0) < 1:
        parser.error(f"--batches must be numbers from 1 up, got {given.batches}")
    torch.set_num_threads(1)
    found = []
    for num_rows in given.batches:
        each = measure(num_rows, given.drafted, given.vocab, given.rounds, is_adaptive=given.adaptive)
        found.append({**vars(each), "microseconds": 1e6 * each.seconds})
    show_lines(str(describe_machine()["processor"]), COLUMNS, found)
    record(given.json, lines=found)


if __name__ == "__main__":
    main()
