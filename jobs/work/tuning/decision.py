"""The draft of a run whose configuration names several: a trial on rows of the run decides, once, and says why."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TYPE_CHECKING

import ray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from actors.engines.candidates import none_left
from actors.engines.loading import in_own_thread
from actors.resources import shortage
from jobs.driver.chosen import draft_folder
from jobs.driver.cluster import start_ray
from jobs.driver.plan import Plan
from jobs.driver.progress import Progress
from jobs.report_page.numbers import format_length, format_rate
from jobs.work.estimate import NUM_PLACES, evenly
from jobs.work.tuning.search import choose, fastest, search
from jobs.work.tuning.setting import Setting, own_setting
from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_choice import DraftChoice
from pipeline.streaming.calls import NoProgressError

if TYPE_CHECKING:
    from jobs.work.tuning.trials import Trials

_SHARE = 0.1  # of what the run would take without a draft: the most that a trial takes
_FIRST = 0.2  # of the time: for all to write the rows once, before the slower half drops out


def decided(plan: Plan, units: Iterable[WorkUnit], num_rows: int, run_directory: RunDirectory | None = None) -> Plan:
    """Return the plan with one draft of several, by a trial on some of these units, which have `num_rows` rows.

    Where the drafters can take turns in the engines of the run, all of them stay, and nothing is tried before.
    The choice is printed, and kept in the run directory. One that was kept is printed alone. Raises ValueError if no
    draft can be used, and what a task of Ray raises.
    """
    if plan.choice is not None:
        print(f"  draft: {plan.choice} (by an earlier trial)")
    if plan.candidates is None:
        return plan
    found, settings = plan.candidates.found, plan.settings
    if not plan.candidates.why_no_turns(settings, plan.pool.memory):
        for line in plan.candidates.left_out:
            print(f"  left out: {line}")
        turns = tuple((drafter, draft_folder(draft), name) for drafter, draft, name in plan.candidates.turns)
        return replace(plan, settings=replace(settings, turns=turns), candidates=None)
    if len(found) == 1:
        named, why = plan.candidates, "nothing else in models.draft can be used"
        drafter, draft = found[0]
        choice = DraftChoice(named=named.named, drafter=drafter, draft=draft, why=why, left_out=named.left_out)
    else:
        with Progress(plan.config.run.progress, f"trying {len(found)} drafts on rows of this run") as progress:
            choice = _tried(plan, evenly(units, NUM_PLACES), num_rows, progress)
    _print(choice)
    if run_directory is not None:
        choice.write(run_directory.location)
    return plan.with_choice(choice)


def _tried(plan: Plan, units: Seq[WorkUnit], num_rows: int, progress: Progress) -> DraftChoice:
    """Try the candidates where engines of the run are: in this process, or in one that holds what an engine holds."""
    run, pool = plan.config.run, replace(plan.pool, min_actors=1, max_actors=1, initial_actors=None)
    if run.local:
        try:
            return in_own_thread(lambda: tried(plan, units, num_rows, progress.say))
        finally:
            gc.collect()  # the engine of the run is loaded next, and needs the memory
    start_ray(run.ray_address)
    if lack := shortage(pool, ray.nodes()):
        progress.say(f"waiting for room for a trial of drafts: {lack}")
    own = replace(plan, run_directory=None, files=[])  # the units say what is read
    task = ray.remote(max_calls=1)(tried).options(**pool.actor_options)  # its process ends with it, and gives all back
    result = task.remote(own, units, num_rows)
    if not ray.wait([result], timeout=run.no_progress_timeout_s)[0]:
        ray.cancel(result, force=True)
        raise NoProgressError
    choice: DraftChoice = ray.get(result)
    return choice


def tried(
    plan: Plan, units: Seq[WorkUnit], num_rows: int, say: Callable[[str], None] = lambda step: None
) -> DraftChoice:
    """Let engines with each candidate write rows of these units in turns, and return which one is taken, and why.

    Raises ValueError if none can be loaded, or if a text depends on the draft.
    """
    from jobs.work.tuning.trials import TextsDiffer, Trials  # the engine, of 200 MB, which a run without trial lacks

    candidates, plain = plan.candidates, own_setting(plan).without_draft
    assert candidates is not None, "a plan with one draft has nothing to try"
    most_tokens = _SHARE * num_rows * plan.tokens_per_row / plan.pool.max_actors
    pass_share = _FIRST / (len(candidates.found) + 2)  # with the plain setting and its twin
    try:
        trials = Trials(plan, plain, plain.slots, plan.config.run.draft_trial_s, say, units, most_tokens, pass_share)
        settings = [replace(plain, drafter=drafter, draft=draft) for drafter, draft in candidates.found]
        unfit = trials.unfit(settings)
        left_out = [*candidates.left_out, *(f"{draft}: {why}" for draft, why in unfit.items())]
        settings = [each for each in settings if each.draft not in unfit]
        if settings:
            search(plain, {"drafts": [{"drafter": each.drafter, "draft": each.draft} for each in settings]}, trials)
    except TextsDiffer as error:
        raise ValueError(f"NOT IDENTICAL: {error}; please report this with what `dray prove` says") from error
    left_out += [f"{each.drafts}: memory ran out" for each in trials.ruled_out]
    if not (measured := fastest(settings, trials)):
        raise none_left(left_out)
    best = choose(plain, measured, trials, trials.noise)
    return DraftChoice(
        named=candidates.named,
        drafter=best.drafter,
        draft=best.draft,
        why=_why(best, measured[0], trials),
        measured=tuple(_figures(each, trials) for each in fastest(dict.fromkeys([plain, *measured]), trials)),
        left_out=tuple(left_out),
    )


def _why(best: Setting, top: Setting, trials: Trials) -> str:
    """Return why a setting is taken, beside the fastest one."""
    if best == trials.plain:
        return f"no draft pays beyond the noise ({trials.noise:.0%})"
    times = f"{trials.times_plain(best):.2f} times as fast as no draft"
    return times if best == top else f"{times}, as {top.drafts} is but for the noise ({trials.noise:.0%}), and simpler"


def _figures(setting: Setting, trials: Trials) -> dict[str, str | float | None]:
    counts = trials.passes[setting][-1].counts
    return {
        "drafts": setting.drafts,
        "tokens_per_second": round(trials.speed(setting), 1),
        "times_plain": round(trials.times_plain(setting) or 0.0, 3),
        "acceptance_rate": counts.acceptance_rate,
        "mean_acceptance_length": counts.mean_acceptance_length,
    }


def _print(choice: DraftChoice) -> None:
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=False)
    for heading in ("drafts tried", "tok/s", "times", "accepted", "len"):
        table.add_column(heading, justify="left" if heading == "drafts tried" else "right", overflow="fold")
    for each in choice.measured:
        table.add_row(
            each["drafts"],
            f"{each['tokens_per_second']:,.0f}",
            format_length(each["times_plain"]),
            format_rate(each["acceptance_rate"]),
            format_length(each["mean_acceptance_length"]),
        )
    console = Console(highlight=False, soft_wrap=True)
    if choice.measured:
        console.print(table)
    for line in choice.left_out:
        console.print(f"  left out: {line}", markup=False)
    console.print(f"  draft: {choice}", markup=False)
