"""What `--dry-run` prints: what a run would do, without a model."""

from collections.abc import Iterator, Mapping
from itertools import islice
from textwrap import fill, shorten
from typing import Any

from rich.console import Console
from rich.text import Text

from actors.engines import backend_of
from actors.engines.candidates import Candidates
from actors.engines.footprint import footprint, made_of_in_words, slots_in_words
from actors.engines.model_check import why_not_fused
from actors.resources import describe_placement
from decoding.checkpoint.generation import sampling_of
from decoding.checkpoint.supported import load_config as load_model_config
from decoding.choices import NEED_A_MODEL, OWN_HEAD, OWN_HEAD_IF_ANY
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import is_assistant, is_head
from decoding.heads.mtp.files import own_head, settled_draft
from decoding.vocabulary.vocabulary_map import VocabularyMap
from jobs.driver.plan import Plan
from jobs.work.estimate import evenly
from jobs.work.input_check import MOST_ROWS, InputCheck, Place, check_input, shown_places
from pipeline.id_set import IdSet
from pipeline.inputs.carried import columns_of
from pipeline.inputs.units import BYTES_PER_TOKEN, WorkUnit
from pipeline.inputs.values import visible
from pipeline.run.directory import RunDirectory

_MOST_ERRORS, _MOST_IDS = 20, 3  # that are shown
_INDENT = 11 * " "  # of what goes on
_WRAPPED: dict[str, Any] = {"break_on_hyphens": False, "replace_whitespace": False}
_MOST_LINES, _MOST_COLUMNS = 6, 400  # of a prompt's begin and of its end, and of each line


def print_plan(plan: Plan) -> None:
    """Print what the run would do."""
    console, path = Console(), plan.config.output.path

    def say(text: str) -> None:
        """Print a text; what does not fit on a line goes on below it, where the text begins."""
        for line in text.splitlines():
            indent = 4 * " " + "| " * line.startswith("    |") if line.startswith("    ") else _INDENT
            console.print(Text(fill(line, console.width, subsequent_indent=indent, **_WRAPPED)))

    if plan.run_directory is None:
        units, committed = plan.new_units(), IdSet()
        say(f"New run in {path}")
    else:
        units, committed = plan.run_directory.units(), plan.run_directory.committed_unit_ids()
        say(f"Run in {path}, {len(committed)} of {plan.run_directory.manifest.num_units} units committed")
    num_units = num_rows = largest = num_missing = missing_rows = missing_tokens = 0

    def missing() -> Iterator[WorkUnit]:
        """Yield the units that are missing, and count all."""
        nonlocal num_units, num_rows, largest, num_missing, missing_rows, missing_tokens
        for unit in units:
            num_units, num_rows, largest = num_units + 1, num_rows + unit.num_rows, max(largest, unit.num_rows)
            if unit.unit_id not in committed:
                num_missing, missing_rows = num_missing + 1, missing_rows + unit.num_rows
                missing_tokens += unit.estimated_tokens
                yield unit

    to_check = evenly(missing(), MOST_ROWS)
    models, engine, backend = plan.settings.models, plan.settings.engine, backend_of(plan.settings)
    drafter = engine.pick_drafter(models.draft)
    num_files = f"{len(plan.files):,} file{'s' * (len(plan.files) != 1)}"
    say(f"  input:   {num_files} ({plan.input_options.format}), {num_rows:,} rows")
    options = plan.input_options
    if options.id_column is None and plan.run_directory is None and "id" in columns_of(plan.files[:1], options):
        say("  ids:     rows have a column id; --input.id_column=id names rows by it")
    say(f"  {prompts_in_words(plan)}")
    named = plan.config.generator.models
    say(f"  target:  {named.target} ({models.device}, {models.dtype}{made_of_in_words(plan.settings, models.target)})")
    has_model = drafter in NEED_A_MODEL
    for what, said in zip(("taken", "not applied"), _said_by_model(plan), strict=True):
        if said:
            say(f"  {what} of the model's generation_config.json: {said}")
    say(f"  engine:  {backend.describe()}")
    if backend.plans_memory and (why := why_not_fused(models.target, models.device)):
        say(f"  layers:  transformers' own code, which is slower: {why}")
    if has_model:
        made_of = made_of_in_words(plan.settings, models.draft or "")
        say(f"  draft:   {named.draft}{made_of}{_draft_in_words(plan)}")
    if plan.choice is not None:
        say(f"  taken:   by a trial before: {plan.choice}")
    for line in [] if plan.candidates is None else _candidates_in_words(plan, plan.candidates):
        say(line)
    if named.draft == OWN_HEAD_IF_ANY and models.draft is None and plan.candidates is None:
        say(f"  draft:   none, since {settled_draft(named.draft, models.target)[1]}")
    placement = describe_placement(plan.settings, plan.pool.max_actors)
    say(f"  where:   {'in this process, without Ray' if plan.config.run.local else placement}")
    if plan.config.run.reuse is not None:
        earlier = RunDirectory.open(plan.config.run.reuse)
        changes = [line.strip() for name, line in earlier.changes(plan.identity).items() if name != "input.files"]
        say(f"  reuses:  texts of {plan.config.run.reuse}; {'; '.join(changes) or 'nothing was changed'}")
    if plan.config.learn.every_rows:
        say(f"  learns:  after every {plan.config.learn.every_rows:,} committed rows")
    if plan.settings.has_slots_by_memory:
        say(f"  slots:   {slots_in_words(plan.settings)}; each of the sizes below is that of {engine.slots} slots")
    for name, model in (("target", models.target), ("draft", models.draft if has_model else None)):
        if model is not None and backend.plans_memory:
            say(f"  memory:  {name} {footprint(plan.settings, model)}")
    say(f"  units:   {num_units:,} of at most {largest:,} row{'s' * (largest != 1)}; {num_missing:,} to do")
    say(f"  {plan.task.describe(missing_rows, plan.settings.sampling)}")
    if missing_rows:
        check = check_input(plan, to_check, missing_rows, missing_tokens * BYTES_PER_TOKEN)
        for line in _found_in_input(plan, check, missing_rows, missing_tokens):
            say(line)


def prompts_in_words(plan: Plan) -> str:
    """Return in a line or two what a prompt of this run is, why, and how that is changed."""
    options = plan.input_options
    if options.text_marks is None:
        return f"prompts: sent as they are, {plan.why_prompts}"
    how = "\n           (input.prompts_are: text continues them as they are)" if options.prompts_are == "auto" else ""
    return f"prompts: asked as a user's message, {plan.why_prompts}{how}"


def _found_in_input(plan: Plan, check: InputCheck, num_rows: int, num_tokens: int) -> Iterator[str]:
    """Yield what was found in the rows to do; `num_tokens` is the guess by their bytes."""
    repeated = dict(islice(check.repeated_ids.items(), _MOST_IDS))
    errors = [(Place(error.file, error.row_number), error) for error in check.errors[:_MOST_ERRORS]]
    asked_for = [place for _, place in check.longest] + [place for place, _ in errors]
    asked_for += [place for places in repeated.values() for place in places[:2]]
    at = shown_places(plan, [*asked_for, *([check.first[0]] if check.first else [])])
    num_read, num_good, context = check.num_rows, check.num_rows - len(check.errors), check.engine.limits.max_model_len
    yield f"  read:    {'all' if check.is_whole else f'a sample of {num_read:,} of'} {num_rows:,} rows, without a model"
    if check.num_tokens == 0:
        yield f"  tokens:  about {num_tokens:,} in the prompts (bytes / 4)"
    else:
        number = check.num_tokens if check.is_whole else round(check.num_tokens / num_good * num_rows)
        about = "" if check.is_whole else "about "
        longest = ", ".join(f"{length:,} ({at[place]})" for length, place in check.longest)
        yield f"  tokens:  {about}{number:,} in the prompts"
        yield f"  longest: {longest}; the context has {context:,}"
    if check.num_cut:
        yield (
            f"  warning: after {check.num_cut:,} of these prompts the context ends before sampling.max_tokens; raise "
            "engine.max_model_len, or these texts end sooner"
        )
    if check.num_marked:
        marks = ", ".join(plan.input_options.text_marks or ())
        yield f"  note:    {check.num_marked:,} of these prompts have marks of the template ({marks}): sent as they are"
    if check.num_begun_twice:
        yield (
            f"  warning: {check.num_begun_twice:,} of these prompts begin with two begin tokens: the tokenizer adds "
            f"{check.engine.codec.tokenizer.bos_token}, and they (or the chat template) have it already; leave it out"
        )
    if check.repeated_ids:
        shown_ids = ", ".join(f"{each!r} ({at[places[0]]}, {at[places[1]]})" for each, places in repeated.items())
        yield f"  warning: ids that several rows have: {len(check.repeated_ids):,}, such as {shown_ids}"
    if errors:
        yield f"  errors:  {len(check.errors):,} of these rows would be error rows:"
        for place, error in errors:
            message = shorten(visible(error.message), _MOST_COLUMNS, placeholder=" ...")
            yield f"    {at[place]}: {error.stage}: {message}"
        if len(check.errors) > len(errors):
            yield f"    and {len(check.errors) - len(errors):,} more"
    if len(check.errors) > plan.config.run.max_error_rate * num_read:
        yield f"  warning: that is more than run.max_error_rate {plan.config.run.max_error_rate}: the run would fail"
    if check.first:
        yield f"  first:   the prompt of {at[check.first[0]]} as the model reads it:"
        yield from (f"    | {line}" for line in _cut(check.first[1]))


def _cut(text: str) -> list[str]:
    """Return the first and the last lines of a text, long ones cut."""
    lines = [
        line if len(line) <= _MOST_COLUMNS else line[:_MOST_COLUMNS] + " ..." for line in visible(text).split("\n")
    ]
    return lines if len(lines) <= 2 * _MOST_LINES else [*lines[:_MOST_LINES], "...", *lines[-_MOST_LINES:]]


def _draft_in_words(plan: Plan) -> str:
    """Return for a reader what a head drafts and reads, and which tokens a mapped draft has; else nothing."""
    models = plan.settings.models
    draft, target = models.draft, models.target
    if draft is None or not backend_of(plan.settings).plans_memory:
        return ""
    if models.draft_vocabulary == "map":
        sizes = [load_model_config(path).get_text_config().vocab_size for path in (target, draft)]
        vocabulary = VocabularyMap.between(target, draft, sizes[0], sizes[1])
        return f" (mapped: has {vocabulary.num_common:,} of {sizes[0]:,} tokens)"
    if draft == OWN_HEAD:
        return f" ({own_head(target)})"
    if is_assistant(draft):
        return f" ({fitting_assistant(draft, load_model_config(target), target)})"
    if not is_head(draft):
        return ""
    config = fitting_config(draft, load_model_config(target), target)
    layers = ", ".join(map(str, config.layer_ids or ()))
    kind = f"{config.kind} head in the {config.format} format"
    tokens = f"{config.draft_vocab_size:,} of {config.vocab_size:,} tokens"
    return f" ({kind}; {tokens}, {config.layer_ids_are} of layers {layers})"


def _candidates_in_words(plan: Plan, candidates: Candidates) -> Iterator[str]:
    """Yield the drafts of which a trial takes one, and those of the list that cannot be used."""
    names = [drafter if draft is None else f"{draft} ({drafter})" for drafter, draft in candidates.found]
    if not (why := candidates.why_no_turns(plan.settings, plan.pool.memory)):
        yield f"  draft:   the fastest, while they take turns in each engine: {', '.join(names)}"
        if backend_of(plan.settings).plans_memory:
            yield from (f"  memory:  {draft} {size}" for draft, size in candidates.footprints(plan.settings).items())
    else:
        seconds = f"{plan.config.run.draft_trial_s:g} s before the run ({why})"
        yield f"  draft:   the fastest, by a trial of at most {seconds}: {', '.join(names)}"
    yield from (f"  left out: {line}" for line in candidates.left_out)


def _said_by_model(plan: Plan) -> tuple[str, str]:
    """Name what `generate` would take from the model's file: what this run takes, and what it does not."""
    chosen, asked = plan.settings.sampling, plan.config.sampling
    ours, others = sampling_of(plan.settings.models.target)
    if ours.get("temperature") == 0 and not asked.from_model:  # every file that does not say do_sample
        del ours["temperature"]
    taken = {name for name in ours if asked.from_model and not asked.is_given(name)}
    missed = {name: value for name, value in ours.items() if getattr(chosen, name) != value} | others
    return _listed({name: ours[name] for name in sorted(taken)}), _listed(missed)


def _listed(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in said.items())
