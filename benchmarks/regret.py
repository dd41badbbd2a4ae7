"""What adaptive draft lengths lose by having to learn: `python -m benchmarks.regret`, simulated, without models.

Drafted tokens are accepted by chance, at a rate of the row's own, and a round costs what a table says. The command
prints the speed of the adaptive schedule over that of the best common length, which is not known beforehand in
practice. So 1.00 is a schedule that knows everything about rows that are all alike; rows that differ can give more.
"""

import argparse
import random
import statistics
from collections.abc import Sequence as Seq
from itertools import takewhile

from decoding import SamplingParams, Sequence
from decoding.pace.cost_table import CostTable
from decoding.pace.schedule import AdaptiveSchedule, FixedSchedule, Schedule

# Seconds on two cores, pair `medium`: of a target forward by its tokens, of a draft step by its rows.
_COSTS = CostTable(
    target=(
        (1, 0.0165),
        (2, 0.0170),
        (4, 0.0178),
        (8, 0.0195),
        (16, 0.027),
        (32, 0.046),
        (40, 0.056),
        (72, 0.095),
        (144, 0.18),
    ),
    draft=((1, 0.0011), (4, 0.0013), (8, 0.0016), (16, 0.0022)),
    round_seconds=0.0006,
    position_seconds=0.00002,
)
_MOST = 8
_LENGTHS = (0, 1, 2, 3, 4, 6, 8)
Case = tuple[tuple[float, ...], int, int]  # rates of the rows, slots, number of rows
_CASES: tuple[Case, ...] = (
    *(((rate,), slots, rows) for rate in (0.2, 0.5, 0.8, 0.95) for slots, rows in ((1, 6), (8, 24))),
    *(((0.95, 0.7, 0.4), slots, 24) for slots in (1, 4, 8)),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret", description=__doc__.splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of a row")
    parser.add_argument("--seeds", type=int, default=6, help="runs of each case")
    options = parser.parse_args()
    print("acceptance      slots  rows  best common length  adaptive over it")
    ratios = []
    for case in _CASES:
        rates, slots, num_rows = case
        best, length = max((_mean_speed(case, length, options), length) for length in _LENGTHS)
        ratios.append(_mean_speed(case, None, options) / best)
        names = " ".join(f"{rate:.2f}" for rate in rates)
        print(f"{names:<14}  {slots:>5}  {num_rows:>4}  {length:>18}  {ratios[-1]:>16.3f}", flush=True)
    print(f"mean {statistics.mean(ratios):.3f}")


def _mean_speed(case: Case, length: int | None, options: argparse.Namespace) -> float:
    """Return tokens per second with this common length, or with adaptive lengths if it is None."""
    speeds = []
    for seed in range(options.seeds):
        schedule = AdaptiveSchedule(_COSTS, _MOST) if length is None else FixedSchedule(length)
        speeds.append(_speed(schedule, case, options.new_tokens, seed))
    return statistics.mean(speeds)


def _speed(schedule: Schedule, case: Case, new_tokens: int, seed: int) -> float:
    (rates, slots, num_rows), chance = case, random.Random(seed)
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    waiting = [(Sequence.create([0], params), rates[row % len(rates)]) for row in range(num_rows)]
    running: list[tuple[Sequence, float]] = []
    num_tokens, seconds = 0, 0.0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop())
        sequences = [sequence for sequence, _ in running]
        plan = schedule.plan(sequences, None, has_model=True)
        lengths = plan.lengths
        accepted = [_accepted(chance, rate, length) for (_, rate), length in zip(running, lengths, strict=True)]
        for sequence, stood, length in zip(sequences, accepted, lengths, strict=True):
            sequence.commit([0] * (stood + 1), num_draft_tokens=length, eos_token_ids=frozenset(), logprobs=[])
            num_tokens += stood + 1
        round_seconds = _seconds(lengths)
        schedule.observe(plan, sequences, lengths, accepted, round_seconds)
        seconds += round_seconds
        running = [row for row in running if not row[0].is_finished]
    return num_tokens / seconds


def _accepted(chance: random.Random, rate: float, length: int) -> int:
    return sum(1 for _ in takewhile(lambda _: chance.random() < rate, range(length)))


def _seconds(lengths: Seq[int]) -> float:
    steps, num_rows, num_steppers = max(lengths), len(lengths), sum(length > 0 for length in lengths)
    drafting = steps * _COSTS.draft_seconds(num_steppers) if steps else 0.0
    own = _COSTS.round_seconds + num_rows * (1 + steps) * _COSTS.position_seconds
    return _COSTS.target_seconds(num_rows + sum(lengths)) + drafting + own


if __name__ == "__main__":
    main()
