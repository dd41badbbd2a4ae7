"""report.html: a run as one page to look at. It loads nothing from anywhere, and nothing in it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jobs.report_page import charts
from jobs.report_page.facts import Group, RunFacts, gather
from jobs.report_page.numbers import FILTERS
from jobs.report_page.rounds import expected_length
from jobs.report_page.samples import codec_or_why_not, read_samples
from pipeline.counts import Counts
from pipeline.run.dead_letters import Wanted, find_dead_letters
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_versions import DraftVersion, DraftVersions
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, replacement


@dataclass(frozen=True)
class Estimate:
    """Times the time of this run. `is_bound`: it would have taken that at most, as no cost was measured."""

    factor: float
    is_bound: bool
    how: str


def time_without_speculation(counts: Counts, round_seconds: Sequence[tuple[float, ...]]) -> Estimate | None:
    """Return the estimate; None where nothing was drafted.

    Without speculation each token takes a round. Where engines measured what rounds of each draft length cost, those
    costs decide; else the number of rounds bounds it, as if drafting and verifying several tokens cost nothing.
    """
    if not counts.num_draft_tokens or not counts.num_rounds:
        return None
    saved = counts.num_output_tokens / counts.num_rounds
    how = (
        f"Each token would have taken a round of the target: {counts.num_output_tokens:,} rounds instead of "
        f"{counts.num_rounds:,}. "
    )
    if not round_seconds:
        how += (
            "This run did not measure what a round with a draft costs more than one without, as its draft length was "
            "fixed; so this is the most that it can have been, not what it was."
        )
        return Estimate(saved, is_bound=True, how=how)
    mean_draft = counts.num_draft_tokens / counts.num_rounds
    ratio = fmean(costs[0] / np.interp(mean_draft, range(len(costs)), costs) for costs in round_seconds)
    how += (
        f"By what the engines measured at their start, with all slots in use, a round without a draft takes "
        f"{ratio:.2f} times as long as one with the mean draft of {mean_draft:.2f} tokens. Reading prompts is "
        "left out, and rounds of fewer rows cost otherwise, so take it as a rough figure."
    )
    return Estimate(saved * ratio, is_bound=False, how=how)


_FOLDER = Path(__file__).parent
NAME = "report.html"


def write_page(run_directory: RunDirectory, by: Sequence[str] | None = None, to: Location | None = None) -> str:
    """Write the page of a run as it is now, into its folder unless `to` is given; return where it is.

    Raises ValueError for a column in `by` that is not there, and OSError.
    """
    page = page_of(run_directory, by).encode("utf-8", "replace")
    if to is not None:
        with replacement(to) as file:
            file.write(page)
        return to.name
    if run_directory.location.is_local:
        run_directory.temporary.make_folder()  # which a run that was copied from a store lacks
    to = run_directory.location.child(NAME)
    replace_file(to, page, run_directory.temporary)
    return to.name


def page_of(run_directory: RunDirectory, by: Sequence[str] | None = None) -> str:
    """Return the page of a run as it is now. Raises as `write_page` does."""
    facts = gather(run_directory, by)
    codec, why_unmarked = codec_or_why_not(run_directory)
    samples = read_samples(run_directory, codec, facts.by)
    if not why_unmarked and not any(sample.pieces for sample in samples):
        why_unmarked = "no rounds of these rows were recorded (output.rounds; vLLM does not tell what it rejects)"
    try:
        errors = find_dead_letters(run_directory, Wanted())
    except (ValueError, OSError):  # they cannot be read
        errors = None
    return _drawn(
        "page.html",
        **_run(run_directory, facts),
        charts=_charts(facts, has_scores=run_directory.has("scores")),
        errors=errors,
        draft_versions=_versions(run_directory, facts),
        samples=samples,
        kinds_of_samples=sorted({sample.kind for sample in samples if sample.kind}),
        why_unmarked=why_unmarked,
    )


def rendered(template: str, to: Location, **values: Any) -> None:
    """Write a page of a template beside that of a run. Raises OSError."""
    with replacement(to) as file:
        file.write(_drawn(template, **values).encode("utf-8", "replace"))


def _drawn(template: str, **values: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(template).render(**values, style=Markup((_FOLDER / "page.css").read_text()))


def _run(run_directory: RunDirectory, facts: RunFacts) -> dict[str, Any]:
    run, whole, seconds = run_directory.run, facts.whole, facts.timeline.working_seconds
    models: Mapping[str, Any] = run.get("models") or {}
    groups = dict(sorted(facts.groups.items(), key=lambda entry: -entry[1].counts.num_output_tokens))
    return {
        "name": run_directory.location.name,
        "title": run_directory.location.short_name,
        "now": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "is_complete": run_directory.is_success(),
        "has_scores": run_directory.has("scores"),
        "target": _short(models.get("target")),
        "draft": _short(models.get("draft")),
        "settings": _settings(run),
        "versions": run.get("versions", {}),
        "facts": facts,
        "whole": whole,
        "groups": groups,
        "most_tokens": max((group.counts.num_output_tokens for group in groups.values()), default=0),
        "num_positions": max((len(group.counts.accepted_per_position) for group in groups.values()), default=0),
        "repeated": {times: number for times, number in sorted(facts.attempts.items()) if times},
        "peak_memory": max(facts.peak_memory.values(), default=None),
        "seconds": seconds,
        "tokens_per_second": whole.counts.num_output_tokens / seconds if seconds else None,
        "began": _moment(facts.timeline.began_at) if seconds else None,
        "ended": _moment(facts.timeline.ended_at) if seconds else None,
        "estimate": time_without_speculation(whole.counts, facts.round_seconds),
        "choices": _choices(facts),
    }


def _short(path: str | None) -> str | None:
    """Return the last two names of a model's folder: where the folder is says little about the run."""
    return None if path is None else "/".join(path.rstrip("/").split("/")[-2:])


def _settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader wants to know of the configuration, where run.json has it."""
    identity, settings = run["identity"], run.get("settings", {})
    engine = settings.get("engine", {}) if isinstance(settings, dict) else {}
    sampling = identity.get("sampling", {})
    return {
        "verification": identity.get("verification"),
        "dtype": identity.get("dtype"),
        "weights of": identity.get("target_gguf", {}).get("quantization"),
        "temperature": sampling.get("temperature"),
        "seed": identity.get("seed"),
        "drafter": engine.get("drafter"),
        "draft length": engine.get("draft_length"),
        "most draft tokens": engine.get("num_speculative_tokens"),
        "slots": engine.get("num_slots"),
    }


def _choices(facts: RunFacts) -> list[dict[str, float]]:
    """Return what each draft length is worth by the costs of the first engine; [] where none were measured.

    `seconds` are those of a round, `expected` are the tokens of a row in it.
    """
    alpha = facts.whole.rounds.acceptance
    if not facts.round_seconds or alpha is None:
        return []
    return [
        {"length": length, "seconds": seconds, "expected": (expected := expected_length(alpha, length))}
        | {"tokens_per_second": expected / seconds}
        for length, seconds in enumerate(facts.round_seconds[0])
    ]


def _charts(facts: RunFacts, *, has_scores: bool) -> dict[str, Markup]:
    whole, drawn = facts.whole, dict[str, Markup]()
    if facts.timeline.working_seconds:  # times of files are no times of work: those of a copied run are of the copy
        drawn["throughput"] = charts.throughput(facts.timeline)
    if whole.rounds.acceptance is not None:
        drawn["positions"] = charts.acceptance_by_position(whole.rounds)
        drawn["drafts"] = charts.draft_lengths(whole.rounds)
    if whole.counts.num_draft_tokens:
        by_length = sorted(facts.groups.items(), key=lambda entry: -(entry[1].counts.mean_acceptance_length or 0))
        drawn["kinds"] = charts.mean_lengths(dict(by_length))
    if facts.output_lengths:
        what = "the scored text" if has_scores else "the output"
        drawn["outputs"] = charts.lengths(facts.output_lengths, what, "outputs")
    if facts.prompt_lengths:
        drawn["prompts"] = charts.lengths(facts.prompt_lengths, "the prompt", "prompts")
    return drawn


def _versions(run_directory: RunDirectory, facts: RunFacts) -> list[tuple[int, DraftVersion | None, Group]]:
    """Return each version of the draft with what became of it and its counts, if there are several."""
    try:
        offered = {version.number: version for version in DraftVersions(run_directory.location).all()}
    except (ValueError, OSError):
        offered = {}
    numbers = sorted({*facts.versions, *offered})
    if numbers in ([], [0]):
        return []
    counts = {number: Group(facts.versions[number]) for number in facts.versions}
    return [(number, offered.get(number), counts.get(number, Group())) for number in numbers]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
