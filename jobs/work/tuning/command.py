"""The work of `dray tune`: settings are searched, and the best one is told and written."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from jobs.config.tune import TuneConfig
from jobs.driver.outcome import run_command
from jobs.driver.plan import Plan
from jobs.driver.stopping import Exit
from jobs.work.tuning.result import shown
from jobs.work.tuning.search import choose, fastest, search
from jobs.work.tuning.setting import Axes, Setting, axes_to_try, in_words, plain_setting
from jobs.work.tuning.trials import TextsDiffer, Trials
from jobs.work.tuning.yaml_file import with_fields

_MARK = "# Written by `dray tune`"  # at the beginning of a file that may be written again
_GRID_REPEATS, _GRID_FINALISTS, _GRID_FINALS = 3, 3, 9


def tune(config: TuneConfig) -> Exit:
    """Find the fastest setting, and return the exit code."""
    return run_command(config, _begin)


def _begin(config: TuneConfig, plan: Plan) -> Callable[[], Exit]:
    file, plain = _file_to_write(config), plain_setting(plan)
    axes = axes_to_try(config, plan, plain)
    if config.dry_run:
        print(f"would try {in_words(axes)}; would write {file or 'no file'}")
        return lambda: Exit.COMPLETE
    return lambda: _tune(config, plan, plain, axes, file)


def _tune(config: TuneConfig, plan: Plan, plain: Setting, axes: Axes, file: Path | None) -> Exit:
    """Search, choose, tell and write."""
    console, num_threads = Console(), torch.get_num_threads()

    def say(line: object) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        say(f"loading {Path(plan.settings.models.target).name}, and looking how fast it is ...")
        trials = Trials(plan, plain, max(each["slots"] for each in axes["slots"]), config.tune.seconds, say)
        axes = _possible(axes, trials, say)
        say(f"trying {in_words(axes)}")
        search(plain, axes, trials)
        best = choose(plain, trials.passes, trials, trials.noise)
        _tell(trials, best, config.tune.picture, say)
        if file is not None:
            _write(file, config, _fields(best, plain, plan.settings.models.draft))
            say(f"written: {file}; `dray generate --config {file}` takes it")
        if config.tune.grid:
            _tell_grid(axes, trials, best, say)
    except TextsDiffer as error:
        print(f"error: NOT IDENTICAL: {error}; please report this with what `dray prove` says", file=sys.stderr)
        return Exit.FAILED
    finally:
        torch.set_num_threads(num_threads)
    return Exit.COMPLETE


def _possible(axes: Axes, trials: Trials, say: Callable[[str], None]) -> Axes:
    """Return what can be tried: drafts that fit, dtypes in which the promise holds, slots for which there are rows."""
    plain, unfit = trials.plain, set[str]()
    for draft, each in {each["draft"]: each for each in axes["drafter"]}.items():
        try:
            trials.parts_of(replace(plain, **each))
        except ValueError as error:
            unfit.add(draft)
            say(f"left out: {draft}: {error}")
    drafters = [each for each in axes["drafter"] if each["draft"] not in unfit]
    dtypes = [each for each in axes["dtype"] if each["dtype"] == plain.dtype or trials.is_promised(each["dtype"])]
    if left_out := [each["dtype"] for each in axes["dtype"] if each not in dtypes]:
        say(f"left out: {', '.join(left_out)}: texts would depend on the batch here (docs/promise.md)")
    num_texts = len(trials.rows.sequences())
    slots = [each for each in axes["slots"] if each["slots"] <= max(num_texts, plain.slots)]
    return {**axes, "dtype": dtypes, "drafter": drafters, "slots": slots}


def _tell(trials: Trials, best: Setting, picture: str | None, say: Callable[[object], None]) -> None:
    """Print the table, the bars, and what to take; draw the same into a picture."""
    drawn = Console(record=True, width=80, file=io.StringIO())
    for line in shown(trials, fastest(trials.passes, trials), best):
        say(line)
        drawn.print(line, highlight=False)
    if picture is not None:
        drawn.save_svg(picture, title="dray tune")


def _fields(best: Setting, plain: Setting, draft: str | None) -> dict[str, Any]:
    """Return the fields of a configuration that say this setting; those that stay as they are are not among them."""
    fields: dict[str, Any] = {"engine.drafter": best.drafter, "engine.num_slots": best.slots}
    if best.draft not in (None, draft):
        fields["models.draft"] = best.draft
    if best.dtype != plain.dtype:
        fields["models.dtype"] = best.dtype
    if best.threads != plain.threads:
        fields["actors.num_cpus"] = best.threads
    return fields


def _file_to_write(config: TuneConfig) -> Path | None:
    """Return the file that gets the best setting; None if there is none. Raises ValueError for one that cannot."""
    own = config.config_file
    if config.tune.write is not None:
        file = Path(config.tune.write).expanduser()
        if own is None and not file.exists():
            raise ValueError(
                f"tune.write is {config.tune.write!r}, a new file, which needs a --config whose copy it can be"
            )
        return file
    if own is None:
        return None
    file = own.with_name(f"{own.stem}.tuned{own.suffix}")
    if file.exists() and not file.read_text(encoding="utf-8").startswith(_MARK):
        raise ValueError(f"{file} is there, and `dray tune` has not written it; name another file in tune.write")
    return file


def _write(file: Path, config: TuneConfig, fields: Mapping[str, Any]) -> None:
    """Write the configuration with these fields into the file: a new one, or the user's own."""
    is_own = config.tune.write is not None and file.exists()
    source = file if is_own else config.config_file
    assert source is not None, "without one there is no file to write"
    text = with_fields(source.read_text(encoding="utf-8"), fields)
    file.write_text(text if is_own else f"{_MARK} from {source.name}.\n{text}", encoding="utf-8")


def _tell_grid(axes: Axes, trials: Trials, best: Setting, say: Callable[[str], None]) -> None:
    """Measure every combination, and print how near the choice comes to the best of them, both measured once more."""
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
    say(f"grid: {len(every)} settings; the best: {top}: {again[top]:.3f} times plain")
    say(f"the choice: {best}: {again[best]:.3f} times plain, {again[best] / again[top]:.3f} of the best")
    say(f"the plain setting and its twin: {median(trials.twin[-_GRID_FINALS:]):.3f}; noise {trials.noise:.1%}")
