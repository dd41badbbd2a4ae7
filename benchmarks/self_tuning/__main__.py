"""A run that tunes itself beside each fixed drafter: `python -m benchmarks.self_tuning`.

For each of eight workloads all drafters write some of the rows, in turns of a fraction of a second, so that other work
on the machine slows all alike. The two fastest then write all rows, beside an engine in which all drafters take turns,
and beside a second engine with the setting of the fastest one: how far that one is from it is the noise. All must write
the same text. Each repeat begins with engines that have learned nothing. `times` is the median over the repeats of the
whole time of the engine that tunes itself over that of the best fixed setting, which is known in hindsight alone.
"""

import gc
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.drafts import PAIR
from benchmarks.engines_in_turns import require_same_text
from benchmarks.harness import Table, parser_of, say, show_lines
from benchmarks.roofline.hardware import record
from benchmarks.self_tuning.workloads import WORKLOADS, Workload, make_bad_draft, read_prompts
from decoding import Engine, EngineOptions
from decoding.engine.lanes import Costs, load_in_turn
from decoding.engine.load import Parts, load_parts
from decoding.network.target import Target
from decoding.pace.learned import Learned
from decoding.turns import one_repeat
from jobs.work.tuning.engine_turns import EnginePass, engine_way

TUNED, TWIN = "in turn", "the best again"
_MAX_MODEL_LEN, _NUM_FINALISTS, _LOOK = 512, 2, 0.25
COLUMNS = (
    ("workload", "workload", ""),
    ("temperature", "temperature", "g"),
    ("best fixed", "best", ""),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times plain", "times_plain", ".2f"),
    ("in turn", "times", ".3f"),
    ("best again", "twin_times", ".3f"),
    ("led at the end", "leader", ""),
)


class Engines:
    """The engines of one workload, over one target; what rounds cost is measured once for each."""

    def __init__(self, workload: Workload, bad_draft: Path, target: Target | None) -> None:
        """Load the drafts."""
        self._options = EngineOptions(num_slots=workload.rows_at_once, max_model_len=_MAX_MODEL_LEN)
        self._costs: dict[str, Costs] = {}
        turns = workload.turns(bad_draft)

        def load(draft: str | None, options: EngineOptions, target_model: Target | None) -> Parts:
            model = target if target_model is None else target_model
            return load_parts(str(PAIR / "target"), draft, options, "cpu", "float32", None, model)

        own = load_in_turn(turns, self._options, load)
        self.parts: dict[str, Parts] = {each.name: each for each in own.in_turn}
        target = own.target  # the same weights in the same place: how fast a round is depends on that
        self.parts[TUNED] = load_in_turn([turn for turn in turns if turn[0] != "none"], self._options, load)

    def make(self, name: str) -> Engine:
        """Return a fresh engine."""
        parts = self.parts[name].beside()
        engine = Engine.over(parts, self._options, self._costs.get(name))
        if name not in self._costs:
            schedules = engine.lanes[0].schedules
            tables = tuple(each.costs for each in schedules if each.costs is not None)
            self._costs[name] = tables if len(tables) > 1 else tables[0] if tables else None
        return engine


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("self_tuning", __doc__)
    flag = parser.add_argument
    flag("--seconds", type=float, default=11.0, help="that the best setting takes to write all rows, about")
    flag("--repeats", type=int, default=3)
    flag("--only", type=int, nargs="*", help="numbers of workloads, from 1")
    flag("--clock", choices=("seconds", "cpu_seconds"), default="seconds", help="cpu_seconds on a busy machine")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prompts, lines = read_prompts(), list[dict[str, Any]]()
    gc.freeze()  # as processes with an engine do
    with TemporaryDirectory() as folder:
        bad_draft = make_bad_draft(Path(folder) / "bad draft")
        for number, workload in enumerate(WORKLOADS, 1):
            if options.only is None or number in options.only:
                lines.append(line_of(workload, prompts, bad_draft, options))
    show_lines("a run that tunes itself", COLUMNS, lines)
    settings = {name: getattr(options, name) for name in ("seconds", "repeats", "clock")}
    record(options.json, settings=settings, lines=lines)


def line_of(workload: Workload, prompts: list[list[int]], bad_draft: Path, options: Any) -> dict[str, Any]:
    """Return what one workload showed."""
    engines = Engines(workload, bad_draft, None)

    def seconds(found: EnginePass) -> float:
        return float(getattr(found, options.clock))

    def ways(named: Mapping[str, str], num_rows: int, most: float = float("inf")) -> Mapping[str, Any]:
        make = {name: partial(engines.make, setting) for name, setting in named.items()}
        return {
            name: engine_way(each, lambda _: workload.rows(prompts, num_rows), 1, most) for name, each in make.items()
        }

    num_rows = few = 4 * workload.rows_at_once
    fixed = {name: name for name in engines.parts if name != TUNED}
    while True:
        plain = one_repeat(ways({"none": "none"}, few), 0)["none"]
        if seconds(plain) > options.seconds / 16:
            break
        few *= 2
    look = one_repeat(ways(fixed, few, 4 * seconds(plain)), 0)
    speeds = {name: found.done / seconds(found) for name, found in look.items()}
    finalists = sorted(speeds, key=lambda name: -speeds[name])[:_NUM_FINALISTS]
    per_row = plain.done / few
    num_rows = max(workload.rows_at_once, round(options.seconds * speeds[finalists[0]] / per_row))
    if workload.num_prompts is None:
        num_rows = min(num_rows, len(prompts))
    say(f"{workload.name}: {num_rows} rows; " + ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items()))
    named = {each: each for each in finalists} | {TWIN: finalists[0], TUNED: TUNED}
    learned: list[Learned] = []
    passes: dict[str, list[EnginePass]] = {name: [] for name in named}
    for repeat in range(options.repeats):
        made: dict[str, Engine] = {}
        running = {
            name: engine_way(
                _kept(made, name, partial(engines.make, setting)), lambda _: workload.rows(prompts, num_rows)
            )
            for name, setting in named.items()
        }
        for name, found in one_repeat(running, repeat).items():
            passes[name].append(found)
        tuned = made[TUNED].learned
        assert tuned is not None, "drafters take turns in it"
        learned.append(tuned)
        took = {name: f"{seconds(found[-1]):.2f}" for name, found in passes.items()}
        say(f"  repeat {repeat + 1} of {options.repeats}: {took}; {tuned.leader} leads")
    table = Table(passes)
    for name in named:
        require_same_text(table, name, finalists[0])
    best = min(finalists, key=lambda name: median(map(seconds, passes[name])))
    over = {name: [seconds(a) / seconds(b) for a, b in zip(passes[name], passes[best], strict=True)] for name in named}
    done = median(each.done for each in passes[best])
    return {
        "workload": workload.name,
        "rows_at_once": workload.rows_at_once,
        "temperature": workload.temperature,
        "rows": num_rows,
        "best": best,
        "tokens_per_second": done / median(map(seconds, passes[best])),
        "times_plain": speeds[best] / speeds["none"],
        "times": median(over[TUNED]),
        "all_times": over[TUNED],
        "twin_times": median(seconds(a) / seconds(b) for a, b in zip(passes[TWIN], passes[finalists[0]], strict=True)),
        "leader": ", ".join(dict.fromkeys(each.leader for each in learned)),
        "speeds_at_first": speeds,
        "turns": [{name: vars(tally) for name, tally in each.tallies.items()} for each in learned],
    }


def _kept(made: dict[str, Engine], name: str, make: Callable[[], Engine]) -> Callable[[], Engine]:
    def kept() -> Engine:
        made[name] = make()
        return made[name]

    return kept


if __name__ == "__main__":
    main()
