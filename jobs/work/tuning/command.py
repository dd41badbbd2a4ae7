"""The work of `dray tune`: settings are searched, and the best one is told and written."""

import io
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from actors.engines.footprint import free_memory
from decoding.cache.footprint import GIB
from jobs.config.tune import TuneConfig
from jobs.driver.outcome import run_command
from jobs.driver.plan import Plan
from jobs.driver.progress import Progress
from jobs.driver.stopping import Exit
from jobs.names import tell
from jobs.work.tuning.result import shown
from jobs.work.tuning.search import choose, fastest, search
from jobs.work.tuning.setting import Axes, Setting, axes_to_try, in_words, own_setting
from jobs.work.tuning.trials import TextsDiffer, Trials
from jobs.work.tuning.yaml_file import TunedFile

_GRID_REPEATS, _GRID_FINALISTS, _GRID_FINALS = 3, 3, 9


def tune(config: TuneConfig) -> Exit:
    """Find the fastest setting, and return the exit code."""
    return run_command(config, _begin, "nothing was written")


def _begin(config: TuneConfig, plan: Plan) -> Callable[[], Exit]:
    own, file = own_setting(plan), TunedFile.of(config, plan)
    try:  # what would fail after minutes
        if file is not None:
            file.with_fields(own.fields_beside(own))
    except ValueError as error:
        if config.tune.write is not None:
            raise
        tell(f"nothing will be written: {error}")
        file = None
    axes = axes_to_try(config, plan, own)
    if config.dry_run:
        where = file.path if file else "no file (--tune.write names one)"
        tell(f"would try {in_words(axes)}\nwould write {where}", sys.stdout)
        return lambda: Exit.COMPLETE
    return lambda: _tune(config, plan, own, axes, file)


def _tune(config: TuneConfig, plan: Plan, own: Setting, axes: Axes, file: TunedFile | None) -> Exit:
    """Search, choose, tell and write."""
    console, num_threads, plain = Console(), torch.get_num_threads(), own.without_draft

    def say(line: object) -> None:
        with console.capture() as captured:
            console.print(line, highlight=False, markup=False)
        print(captured.get(), end="")  # by sys.stdout, which a bar that is shown meanwhile makes room for

    try:
        step = f"loading {Path(config.generator.models.target).name}, and looking how fast it is"
        with Progress(config.run.progress, step) as progress:
            most_slots = max(each["slots"] for each in axes["slots"])
            trials = Trials(plan, plain, most_slots, config.tune.seconds, progress.say)
            axes = _possible(axes, trials, say)
            say(f"trying {in_words(axes)}")
            search(plain, axes, trials)
            best = choose(own, trials.passes, trials, trials.noise)
            grid = _grid(axes, trials, best) if config.tune.grid else []
    except TextsDiffer as error:
        tell(f"error: NOT IDENTICAL: {error}; please report this with what `dray prove` says")
        return Exit.FAILED
    finally:
        torch.set_num_threads(num_threads)
    drawn = Console(record=True, width=80, file=io.StringIO())
    for line in shown(trials, fastest(trials.passes, trials), best):
        say(line)
        drawn.print(line, highlight=False)
    if config.tune.picture is not None:
        drawn.save_svg(config.tune.picture, title="dray tune")
    for text in grid:
        say(text)
    fields = best.fields_beside(own)
    say("as flags: " + " ".join(f"--{name}={shlex.quote(str(value))}" for name, value in fields.items()))
    if file is not None:
        file.write(fields)
        say(f"written: {file.path}; `dray generate --config {file.path}` takes it")
    return Exit.COMPLETE


def _possible(axes: Axes, trials: Trials, say: Callable[[str], None]) -> Axes:
    """Return what can be tried: drafts that fit, dtypes in which the promise holds, slots with rows and memory."""
    plain = trials.plain
    unfit = trials.unfit([replace(plain, **each) for each in axes["drafter"]])
    for draft, why in unfit.items():
        say(f"left out: {draft}: {why}")
    drafters = [each for each in axes["drafter"] if each["draft"] not in unfit]
    dtypes = [each for each in axes["dtype"] if each["dtype"] == plain.dtype or trials.is_promised(each["dtype"])]
    if left_out := [each["dtype"] for each in axes["dtype"] if each not in dtypes]:
        say(f"left out: {', '.join(left_out)}: texts would depend on the batch here (docs/promise.md)")
    num_texts = len(trials.rows.sequences())
    slots = [each for each in axes["slots"] if each["slots"] <= max(num_texts, plain.slots)]
    free = free_memory(trials.settings.models.device)
    for each in slots[:]:
        cache = sum(of_model.cache for of_model in replace(plain, **each).footprints(trials.settings))
        if cache > free and each["slots"] != plain.slots:
            slots.remove(each)
            say(f"left out: {each['slots']} slots: a cache of {cache / GIB:.1f} GiB, and {free / GIB:.1f} are free")
    return {**axes, "dtype": dtypes, "drafter": drafters, "slots": slots}


def _grid(axes: Axes, trials: Trials, best: Setting) -> list[str]:
    """Measure every combination, and return how near the choice comes to the best of them, both measured once more."""
    every = [
        replace(trials.plain, **{name: value for each in values for name, value in each.items()})
        for values in product(*axes.values())
    ]
    for _ in range(_GRID_REPEATS):
        trials.run("grid", every, float("inf"))
    few = list(dict.fromkeys([best, *fastest(every, trials)[:_GRID_FINALISTS]]))
    for _ in range(_GRID_FINALS):
        trials.run("the choice and the best of the grid", few, float("inf"))
    again = {setting: median(trials.spread(setting)[-_GRID_FINALS:]) for setting in few}
    top = max(few, key=lambda setting: again[setting])
    return [
        f"grid: {len(every)} settings; the best: {top}: {again[top]:.3f} times plain",
        f"the choice: {best}: {again[best]:.3f} times plain, {again[best] / again[top]:.3f} of the best",
        f"the plain setting and its twin: {median(trials.twin[-_GRID_FINALS:]):.3f}; noise {trials.noise:.1%}",
    ]
