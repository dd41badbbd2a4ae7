"""What the host does in a round on a GPU, measured without one: `python -m benchmarks.host_time`.

A lane runs its rounds over recordings that do nothing and whose verdicts are made up, so what is left is Python and the
operations that a GPU would be given one by one. They are counted, and so are the times at which the host would wait for
the device. The time is all that the host does in a round: it reads the verdicts of one round, commits them, admits
rows, plans draft lengths and starts the next round. A GPU is busy meanwhile with a round that was started before.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.hardware import describe_machine
from decoding import SamplingParams, Sequence
from decoding.cache.kv_cache import KVCache
from decoding.drafters.model import ModelDrafter
from decoding.engine.overlapped.lane import OverlappedLane
from decoding.engine.overlapped.pending_round import NUM_COUNTS
from decoding.engine.overlapped.recordings import Key, Recordings
from decoding.engine.overlapped.rounds import DeviceRounds
from decoding.engine.overlapped.shapes import rounded_width
from decoding.network.language_model import LanguageModel
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import AdaptiveSchedule, FixedSchedule, Schedule

_WARM_UP = 6  # rounds
_PROMPT_TOKENS = 64
_MAX_MODEL_LEN = 4096
_WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "item")
# They make another view of a tensor, or memory, and no work for the device; the last line is of tensors of the host.
_NO_WORK = {"view", "slice", "select", "unsqueeze", "squeeze", "expand", "t", "transpose", "detach", "alias", "empty"}
_NO_WORK |= {"lift_fresh", "resolve_conj", "resolve_neg"}
# Of the 8B pair on an H100, from its bandwidth (benchmarks/roofline.py): what a round costs decides the plan alone.
_COSTS = CostTable(((1, 5e-3), (128, 1e-2), (2304, 3e-2)), ((1, 6e-4), (256, 6e-3)), 5e-4, 1e-6)


@dataclass(frozen=True)
class HostTime:
    """What the host did in a round: medians over some rounds."""

    num_rows: int
    num_operations: int  # given to the device one by one, copies included
    num_replays: int  # of recordings
    num_waits: int  # for the device
    seconds: float  # of the processor: other work on the machine does not count


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that a GPU would be given, and those that would wait for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_operations = self.num_waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.num_waits += name in _WAITS
        self.num_operations += name not in _NO_WORK
        return func(*args, **(kwargs or {}))


class _Model:
    """A model that is never run, with what a lane asks of one."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.device, self.dtype, self.vocab_size = torch.device("cpu"), torch.bfloat16, vocab_size
        self.eos_token_ids = frozenset({0})
        self.max_positions, self.close_call, self.is_batch_invariant = None, 0.0, True
        self.cache = KVCache(num_slots, _MAX_MODEL_LEN, self.device)

    def allocate(self, num_slots: int, num_positions: int) -> None:
        return None

    def prefill(self, slots: object, token_ids: object, starts: object = None) -> None:
        return None


class _MadeUp(Recordings):
    """Recordings that take no time; each row accepts a number of tokens of its own."""

    def __init__(self) -> None:
        super().__init__(None)
        self.num_replays = self.num_drafts = 0

    def run(self, key: Key, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.num_replays += 1
        kind, num_rows, _, num_drafted, *_ = cast(tuple[str, int, int, int], key)
        if kind == "draft":
            self.num_drafts += 1
            return _made_up(num_rows, num_drafted)
        return _verdicts(num_rows, num_drafted)


_cache: dict[tuple[str, int, int], torch.Tensor] = {}


def _made_up(num_rows: int, num_drafted: int) -> torch.Tensor:
    return _cache.setdefault(("draft", num_rows, num_drafted), torch.full((num_rows, num_drafted + 1), 7))


def _verdicts(num_rows: int, num_drafted: int) -> torch.Tensor:
    key = ("verdicts", num_rows, num_drafted)
    if key not in _cache:
        columns_BC = torch.full((num_rows, NUM_COUNTS + rounded_width(num_drafted)), 7)
        columns_BC[:, 0] = torch.arange(num_rows) % (num_drafted + 1)
        columns_BC[:, 2], columns_BC[:, 3] = 1, num_drafted
        _cache[key] = columns_BC
    return _cache[key]


def measure(num_rows: int, num_drafted: int, vocab_size: int, num_rounds: int, *, is_adaptive: bool) -> HostTime:
    """Run rounds of this many rows at temperature 0.8 and top_p 0.95; medians are of rounds without newcomers."""
    schedule: Schedule = AdaptiveSchedule(_COSTS, num_drafted) if is_adaptive else FixedSchedule(num_drafted)
    lane, recordings = lane_over(schedule, num_rows, vocab_size)
    for _ in range(_WARM_UP):
        lane.advance(num_rows)
    seconds, counts = [], []
    for index in range(2 * num_rounds):
        before = recordings.num_replays
        if index % 2:
            with _Counter() as counter:
                lane.advance(num_rows)
            counts.append((counter.num_operations, recordings.num_replays - before, 1 + counter.num_waits))
        else:
            started = time.thread_time()
            lane.advance(num_rows)
            seconds.append(time.thread_time() - started)
    operations, replays, waits = (int(statistics.median(column)) for column in zip(*counts, strict=True))
    return HostTime(num_rows, operations, replays, waits, statistics.median(seconds))


def lane_over(schedule: Schedule, num_rows: int, vocab_size: int) -> tuple[OverlappedLane, _MadeUp]:
    """Return a lane of this many rows, more rows behind them, and models that are never run; and its recordings."""
    target, draft = (cast(LanguageModel, _Model(num_rows, vocab_size)) for _ in range(2))
    params = SamplingParams(max_tokens=512, temperature=0.8, top_p=0.95)
    drafter, recordings = ModelDrafter(draft, vocab_size, num_rows, _MAX_MODEL_LEN), _MadeUp()
    lane = OverlappedLane(
        target,
        drafter,
        schedule,
        deque(Sequence.create([row % 997] * _PROMPT_TOKENS, params, row=row) for row in range(8 * num_rows)),
        num_slots=num_rows,
        max_model_len=_MAX_MODEL_LEN,
        max_prefill_tokens=2048,
        verification="coupled",
        record=None,
    )
    lane.rounds = DeviceRounds(target, drafter, num_rows, recordings)
    return lane, recordings


def main() -> None:
    """Print one line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,16,64,128,256", help="numbers of rows")
    parser.add_argument("--drafted", type=int, default=4, help="tokens that a row drafts in a round")
    parser.add_argument("--vocab", type=int, default=151_936, help="tokens of the vocabulary")
    parser.add_argument("--rounds", type=int, default=60, help="rounds to measure")
    parser.add_argument("--adaptive", action="store_true", help="plan draft lengths by costs, as engines do by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("rows", "operations", "recordings", "waits", "host, us", title=str(describe_machine()["processor"]))
    for num_rows in map(int, args.batches.split(",")):
        found = measure(num_rows, args.drafted, args.vocab, args.rounds, is_adaptive=args.adaptive)
        counts = (found.num_rows, found.num_operations, found.num_replays, found.num_waits)
        table.add_row(*map(str, counts), f"{found.seconds * 1e6:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
