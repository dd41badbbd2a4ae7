"""Plan of a run: its input, its identity, the units that are missing. Nothing here loads a model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from actors.engine.vocabulary import check_sampling
from actors.engines import backend_of
from actors.engines.candidates import Candidates
from actors.engines.loading import load_codec
from actors.identity import as_begun, described_run, prompts_as_begun, run_identity
from actors.settings import GeneratorSettings
from actors.tasks import RunProgram, Score, Task, WriteValid
from actors.units.unit_rows import WholeUnits
from actors.workers.engine_worker import WorkerSpec
from decoding.checkpoint.model_files import num_bytes_read
from decoding.checkpoint.supported import read_config
from decoding.choices import DrafterName
from decoding.grammar.definition import problem_with
from decoding.heads.mtp.files import settled_draft
from jobs.config.fields import as_dict
from jobs.config.run import RunConfig
from jobs.driver.chosen import ASKED_OF_COMMAND, chosen_here, draft_folder, folder_of, refuse_audits, with_lookup
from jobs.driver.cluster import check_submitted, paths_of, pick_device
from pipeline.inputs.carried import carried_types, id_type, types_from_dict, types_to_dict
from pipeline.inputs.files import InputFile, list_files
from pipeline.inputs.options import InputOptions, resolve_options, settle_prompts
from pipeline.inputs.units import WorkUnit, count_rows, plan_units
from pipeline.run.dead_letters import FailedUnits
from pipeline.run.directory import RunDirectory
from pipeline.run.earlier_rows import refuse_unlike
from pipeline.run.progress.draft_choice import DraftChoice
from pipeline.run.progress.missing import MissingUnits
from pipeline.run.row_sample import NO_ROWS, NUM_SAMPLED, RowSample
from pipeline.schema import ColumnSet, generations_schema
from pipeline.streaming.pool import ActorPool, ActorResources

_ROWS_PER_UNIT = 256  # at most
_UNITS_PER_ENGINE = 4  # at least, if there are as many rows
_UNITS_PER_SLOTS = 8  # at most, to fill an engine's slots: each unit under way costs calls to the ledger
_SECONDS_PER_UNIT = 60.0  # at most, at the pace that is expected
# Bytes of weights that a token reads, times tokens a second of an engine with all slots in use, as first guesses: two
# CPUs reach about 2e11 with a model of 135 million parameters, a GPU with memory of 3 TB/s and 16 slots 5e13.
_PACE = {"cpu": 1e11, "cuda": 5e13}
_Actors = TypeVar("_Actors", bound=ActorResources)


@dataclass(frozen=True)
class Plan:
    """A checked run, new or begun. `run_directory` is None if nothing has been written yet."""

    config: RunConfig
    task: Task
    pool: ActorPool  # with the GPUs that its actors hold
    settings: GeneratorSettings  # as they will be
    input_options: InputOptions
    column_sets: list[ColumnSet]
    carried: dict[str, pa.DataType]
    files: list[InputFile]
    identity: dict[str, Any]
    run_directory: RunDirectory | None
    why_prompts: str  # why prompts are what `input_options` say
    candidates: Candidates | None = None  # of which a trial takes one before engines are loaded; `settings` have none
    choice: DraftChoice | None = None  # of a trial; an earlier one is kept

    def with_choice(self, choice: DraftChoice) -> "Plan":
        """Return the plan with the draft that was taken, on which no text and no identity depends."""
        drafter, draft = cast("DrafterName", choice.drafter), choice.draft
        config = replace(self.config, generator=self.config.generator.with_draft(drafter, draft))
        settings = self.settings.with_draft(drafter, draft_folder(draft))
        backend_of(settings).check_models()
        return replace(self, config=config, settings=settings, candidates=None, choice=choice)

    @property
    def tokens_per_row(self) -> int:
        """Output tokens that a row may have, over its samples."""
        return self.task.tokens_per_row(self.settings.sampling)

    def new_units(self) -> Iterator[WorkUnit]:
        """Yield the units of a run that does not exist yet."""
        return plan_units(self.files, self.input_options, self.config.run.rows_per_unit or self._rows_per_unit)

    @property
    def texts_per_row(self) -> int:
        """Texts that engines write for a row; 0 if that is not known before."""
        return 0 if self.config.is_scoring or self.task.runs_programs else self.settings.sampling.n

    @cached_property
    def _rows_per_unit(self) -> int:
        """Rows in a unit, so that each engine has several units, and commits one a minute even if texts are long."""
        models, num_samples = self.settings.models, self.settings.sampling.n
        most_units = _UNITS_PER_ENGINE * self.pool.max_actors
        num_rows = count_rows(self.files, self.input_options, _ROWS_PER_UNIT * most_units)
        num_bytes = num_bytes_read(Path(models.target), read_config(models.target))
        tokens = _SECONDS_PER_UNIT * _PACE[models.device] / num_bytes
        fewest = ceil(self.settings.most_slots / (_UNITS_PER_SLOTS * num_samples))
        of_a_minute = max(fewest, int(tokens / max(1, self.tokens_per_row)))
        return max(1, min(_ROWS_PER_UNIT, of_a_minute, ceil(num_rows / most_units)))

    def pool_for(self, units: MissingUnits | FailedUnits) -> ActorPool:
        """Return the pool with the units that an actor works on at once, unless these or their rows are given.

        Beside a row that kills its process, many small units would share its deaths. All but one of them fill the
        slots, so that none is empty while the last row of a unit is written. Of several actors none holds more than its
        share of all units, as the others would lack them: it holds twice as many as it works on.
        """
        is_given = self.pool.units_in_flight is not None or self.config.run.rows_per_unit is not None
        if is_given or not units.num_units:
            return self.pool
        num_sequences = units.num_rows / units.num_units * self.settings.sampling.n
        filling = 1 + ceil(self.settings.most_slots / num_sequences)
        num_actors = self.pool.max_actors
        share = units.num_units if num_actors == 1 else ceil(units.num_units / (2 * num_actors))
        return replace(self.pool, units_in_flight=max(self.pool.num_units_at_once, min(filling, share)))


def make_plan(config: RunConfig) -> Plan:
    """Return the plan of a configuration. Raises ValueError or OSError for what fails before any model is loaded."""
    refuse_audits(config)
    plan = unchecked_plan(with_lookup(chosen_here(config)))
    if config.run.reuse is not None:
        refuse_unlike(config.run.reuse, config.output.path, plan.identity["tokenizer"])
    if (begun := plan.run_directory) is not None:
        _refuse_changed_inputs(begun, plan.files)
        begun.refuse_if_changed(plan.identity)
        _refuse_other_columns(begun, plan.config)
    config = plan.config
    if named := config.drafts_to_try:
        choice = None if begun is None else DraftChoice.of(begun.location)
        if choice is not None and choice.named == named:
            plan = plan.with_choice(choice)
        else:
            plan = replace(plan, candidates=Candidates.of(plan.settings, named))
    units = begun.units() if begun else plan.new_units()
    if not config.input.allow_empty and next(units, None) is None:
        raise ValueError(
            f"the input has no rows: all its files are empty ({len(plan.files)}, the first is {plan.files[0].path}); "
            "name files with rows in input.path, or set input.allow_empty to make an empty corpus"
        )
    return plan


def unchecked_plan(config: RunConfig) -> Plan:
    """Return the plan of a configuration, whatever the run that is there was begun with. Raises as `make_plan`."""
    outputs = {"output.path": config.output.path, "learn.path": config.learn.path}
    inputs = {"input.path": config.input.path, "run.reuse": config.run.reuse}
    check_submitted(outputs, inputs | paths_of(config.generator.models))
    settings = config.generator_settings()
    if settings.is_exact_required:
        backend_of(settings).refuse_if_inexact()
    settings, pool = settled(settings, config.actors, "local" if config.run.local else config.run.ray_address)
    if settings.is_exact_required:  # the device is known now
        backend_of(settings).refuse_if_inexact()
    settings = replace(settings, sampling=config.sampling.of_model(settings.models.target))
    files = list_files(config.input.path)
    options = resolve_options(files, config.input_options())
    structured = settings.sampling.structured
    if structured is not None and (problem := problem_with(structured)):
        raise ValueError(problem)
    backend_of(settings).check_models()
    path = config.output.path
    run_directory = RunDirectory.open(path) if RunDirectory.exists(path) else None
    if settings.chat.moment is None:  # templates are told the time that the run began with, or now
        begun = None if run_directory is None else run_directory.run["identity"].get("moment")
        settings = replace(settings, chat=replace(settings.chat, moment=begun or datetime.now().isoformat()))
    codec = load_codec(settings)
    vocab_size = getattr(read_config(settings.models.target).get_text_config(), "vocab_size", None)
    check_sampling(settings.sampling, codec, vocab_size)
    task = task_of(config)
    options, why_prompts = settle_prompts(options, codec.template_marks, task.why_text)
    if run_directory is not None and options.prompts_are == "auto":
        options, why_prompts = prompts_as_begun(options, run_directory.run["identity"]), "as the run began with them"
    task.check(files, options, codec)
    parts = options.format == "openai_batch" if config.output.parts is None else config.output.parts
    new_sets = task.column_sets(parts, reuses=config.run.reuse is not None)
    column_sets = new_sets if run_directory is None else run_directory.column_sets
    carried = (
        types_from_dict(run_directory.run["carried"]) if run_directory else carried_types(files, options, column_sets)
    )
    ids = run_directory.id_type if run_directory else id_type(files, options)
    task.check_rows(settings.sampling, generations_schema(carried, ids, column_sets))
    identity = run_identity(settings, options, files, codec) | task.identity()
    if run_directory is not None:
        identity = as_begun(identity, run_directory.run["identity"])
    return Plan(
        config, task, pool, settings, options, column_sets, carried, files, identity, run_directory, why_prompts
    )


def create_run(plan: Plan, units: Iterable[WorkUnit] | None = None) -> RunDirectory:
    """Return the run directory of a plan; create it if it does not exist, with all units unless some are given.

    Raises ValueError as `RunDirectory.create` does, and if it cannot be written.
    """
    if plan.run_directory is not None:
        return plan.run_directory
    run = {
        "carried": types_to_dict(plan.carried),
        "id_type": str(id_type(plan.files, plan.input_options)),
        **{f"has_{name}": True for name in plan.column_sets if name != "scores"},
        "task": plan.config.task,
        "settings": {name: value for name, value in as_dict(plan.config).items() if name not in ASKED_OF_COMMAND},
        **described_run(plan.settings, plan.identity, plan.task.exactness(backend_of(plan.settings))),
    }
    path, what_to_do = plan.config.output.path, "its folder (output.path) must be one that can be written and has room"
    try:
        return RunDirectory.create(path, run, plan.new_units() if units is None else units)
    except OSError as error:
        raise ValueError(f"the run in {path} cannot be begun: {error}; {what_to_do}") from error


def task_of(config: RunConfig) -> Task:
    """Return what a run does with each row. Raises ValueError for two tasks at once."""
    has_program, validate = config.program.function is not None, config.run.validate
    asked = {"task is 'score'": config.is_scoring, "program.function is set": has_program}
    named = [name for name, is_asked in {**asked, "run.validate is set": bool(validate.checks)}.items() if is_asked]
    if len(named) > 1:
        raise ValueError(f"{named[1]}, but {named[0]}, and a row has one task; drop one of them")
    if config.is_scoring:
        return Score(config.score)
    return RunProgram(config.program) if has_program else WriteValid(validate) if validate.checks else Task()


def worker_spec(plan: Plan, run_directory: RunDirectory) -> WorkerSpec:
    """Return what the workers of this run are told, with the rows whose rounds are recorded."""
    num_rows, asked = run_directory.manifest.num_rows, plan.config.output.rounds
    recorded_rows = RowSample(num_rows, num_rows if asked == "all" else NUM_SAMPLED)
    if asked == "none" or not backend_of(plan.settings).tells_rounds or not run_directory.has("rounds"):
        recorded_rows = NO_ROWS
    return WorkerSpec(
        settings=plan.settings,
        task=plan.task,
        run_path=run_directory.location.name,
        units=WholeUnits(plan.input_options, plan.carried),
        recorded_rows=recorded_rows,
        reuse=plan.config.run.reuse,
        hang_timeout_s=plan.config.run.hang_timeout_s,
        log_settings=plan.config.run.logs,
    )


def settled(settings: GeneratorSettings, actors: _Actors, ray_address: str | None) -> tuple[GeneratorSettings, _Actors]:
    """Return the settings with device, folders, dtype and GPUs of stages as they will be, and what each actor holds.

    Folders are absolute, as actors may start elsewhere. Joins the cluster if only that can tell what `auto` means.
    """
    device, actors = pick_device(settings, actors, ray_address)
    models, stages, backend = settings.models, settings.stages, backend_of(settings)
    target = folder_of(models.target)
    dtype: Any = backend.settled_dtype(target, device) if models.dtype == "auto" else models.dtype
    draft = draft_folder(settled_draft(models.draft, target, settings.engine.drafter)[0])
    tokenizer = folder_of(models.tokenizer) if models.tokenizer else None
    if device == "cpu" and stages.num_gpus:
        raise ValueError(f"models.device is 'cpu' and stages.num_gpus is {stages.num_gpus:g}; drop one of them")
    if device == "cuda" and not stages.num_gpus:
        stages = replace(stages, num_gpus=1.0)  # for each process
    models = replace(models, target=target, draft=draft, tokenizer=tokenizer, device=device, dtype=dtype)
    settings = replace(settings, models=models, stages=stages, engine=backend.settled_engine())
    backend_of(settings).check_gpus(actors.section, actors.num_gpus)
    return settings, actors


def _refuse_other_columns(run_directory: RunDirectory, config: RunConfig) -> None:
    """Raise ValueError if the configuration asks for columns that the run does not have, or for none that it has."""
    path, asked = run_directory.location.name, config.output
    if asked.parts not in (None, run_directory.has("parts")):
        has = "has" if run_directory.has("parts") else "does not have"
        raise ValueError(
            f"output.parts is {asked.parts}, but the run in {path} {has} these columns; leave it out, or use a new "
            "output directory"
        )
    if asked.rounds == "all" and not run_directory.has("rounds"):
        raise ValueError(
            f"output.rounds is 'all', but the run in {path} was begun without a column for rounds; leave it out, or "
            "use a new output directory"
        )


def _refuse_changed_inputs(run_directory: RunDirectory, files: list[InputFile]) -> None:
    planned = {(unit.file, unit.file_size, unit.file_version) for unit in run_directory.units()}
    now = {tuple(file) for file in files if file.size}
    changed = sorted({str(file[0]) for file in planned ^ now})
    if changed:
        raise ValueError(
            f"{run_directory.location.name} holds a run over other input: {', '.join(changed[:3])}"
            f"{' and more' if len(changed) > 3 else ''} changed (path, size or time of change), came or went; "
            "restore the input, or use a new output directory"
        )
