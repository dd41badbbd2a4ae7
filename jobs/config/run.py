"""RunConfig, GenerateConfig and RetryConfig: the configurations of the commands that generate."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pydantic

from actors.engines import backend_of
from actors.settings import GeneratorSettings, ProgramSettings, ValidateSettings
from decoding.choices import OWN_HEAD_IF_ANY, TEXT_DEPENDS_ON_DRAFT
from decoding.sampling_params import SamplingParams
from jobs.config.fields import Flat
from jobs.config.train import LearnSettings
from pipeline.errors import Stage
from pipeline.inputs.options import InputOptions
from pipeline.inputs.score import ScoreOptions
from pipeline.logs import LogSettings
from pipeline.streaming.pool import ActorPool


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """What to read, and how."""

    path: str | list[str]
    """File, folder or glob, or a list of them; local or a URI (s3://, gs://)."""
    allow_empty: bool = False
    """Accept an input without rows, which makes an empty corpus; else it is refused."""
    options: Annotated[InputOptions, Flat()] = field(default_factory=InputOptions)

    def __post_init__(self) -> None:
        if isinstance(self.path, list) and len(self.path) == 1:  # as a command line gives every path
            object.__setattr__(self, "path", self.path[0])


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """The target's distribution and the text's length."""

    from_model: bool = False
    """Take what the target's generation_config.json says, as transformers' generate does, for all that is not set."""
    params: Annotated[SamplingParams, Flat()] = field(default_factory=SamplingParams)
    names_given: frozenset[str] | None = field(default=None, compare=False)  # of the fields that are set, where known

    def of_model(self, target: str) -> SamplingParams:
        """Return the sampling parameters for the model in this folder. Raises ValueError for what cannot be sampled."""
        if not self.from_model:
            return self.params
        if not (Path(target) / "generation_config.json").is_file():
            raise ValueError(f"sampling.from_model is set, but {target!r} has no generation_config.json; leave it out")
        from decoding.checkpoint.generation import sampling_of  # here, since it needs torch, which --help does not

        said, _ = sampling_of(target)
        try:
            return replace(self.params, **{name: value for name, value in said.items() if not self.is_given(name)})
        except ValueError as error:
            raise ValueError(f"sampling.from_model takes {said} from generation_config.json: {error}") from error

    def is_given(self, name: str) -> bool:
        """Tell whether the configuration sets this sampling parameter, or a caller in Python to another value."""
        if self.names_given is None:
            return bool(getattr(self.params, name) != getattr(SamplingParams(), name))
        return name in self.names_given


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The place to write to."""

    path: str
    """The run directory: new, or that of a run to go on with; local or a URI."""
    parts: bool | None = None
    """Columns content, reasoning and tool_calls; unless given, only where the input is an OpenAI batch."""
    rounds: Literal["sample", "all", "none"] = "sample"
    """Which rows record, round by round, what was drafted and rejected: sample is 50, spread evenly over the input."""
    report_html: bool = True
    """Write report.html, a page about the run to look at, when a run is complete."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The run as a whole."""

    seed: int = 0
    """Seed of all noise at temperature > 0."""
    exact: Literal["any", "required"] = "any"
    """Whether the texts must be exact: required refuses, before any is written, what would make `exact` `no`."""
    rows_per_unit: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Input rows in a work unit: what a crash can cost at most. Unless given 256, or fewer, so that each engine has
    several units and writes one in a minute if all texts have sampling.max_tokens; at least an eighth of its slots."""
    reuse: str | None = None
    """Run whose texts are predictions of this one's, by ids or else by places: what comes out again takes less time."""
    validate: ValidateSettings = field(default_factory=ValidateSettings)
    """A check of each text: what does not pass is written again."""
    audit_fraction: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.0
    """Share of the units that another place than wrote them writes again and compares, while the run goes on."""
    max_error_rate: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.5
    """Share of all rows that may fail before the run is a failure; stops early after 100 rows."""
    no_progress_timeout_s: Annotated[float, pydantic.Field(gt=0)] = 3600.0
    """Seconds without a committed unit after which the run fails."""
    draft_trial_s: Annotated[float, pydantic.Field(gt=0)] = 60.0
    """Seconds, once the models are loaded, in which a trial decides between several drafts (models.draft); at most a
    tenth of what the run would take without a draft, or 10."""
    places_timeout_s: Annotated[float, pydantic.Field(ge=0)] = 60.0
    """Seconds without a place that can do units after which the run fails: each has a full or read-only disk, a storage
    that it cannot reach, or a broken device. One such place among others rests, and is tried again."""
    hang_timeout_s: Annotated[float, pydantic.Field(gt=0)] = 900.0
    """Seconds for one step of an engine; a process that takes longer hangs, and is ended."""
    grace_period_s: Annotated[float, pydantic.Field(ge=0)] = 120.0
    """Seconds that units in flight get to finish after Ctrl-C or SIGTERM; then they are dropped."""
    lease_timeout_s: Annotated[float, pydantic.Field(gt=0)] = 60.0
    """Seconds without a sign of life after which a driver loses the run to the next one."""
    backup_units: bool = True
    """At the end, idle actors begin backups of the units that others still work on; the first commit wins. Not under
    verification 'rejection' or 'unadjusted' and with vLLM, where the faster of two texts is no fair draw."""
    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """Progress: a bar at the bottom of a terminal, else lines that are at most ten seconds apart."""
    show_texts: Annotated[int, pydantic.Field(ge=0)] | None = None
    """Generated texts to print at the end; unless given 3 on a terminal, and none elsewhere. A terminal shows the first
    one that is finished, too, unless this is 0."""
    logs: Annotated[LogSettings, Flat(prefix="log_")] = field(default_factory=LogSettings)
    local: bool = False
    """Do the run in the process of the command, with one engine and without Ray: for a small corpus."""
    ray_address: str | None = None
    """Ray cluster; unless given RAY_ADDRESS, one that `ray start` started on this machine, or one of its own (which
    "local" always means)."""
    names_given: frozenset[str] | None = field(default=None, compare=False)  # of the fields that are set, where known


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Generates a corpus: prompts in, Parquet with acceptance counts out, exactly once, resumable."""

    usage: ClassVar[tuple[str, ...]] = ("FILE OUT --model MODEL [--draft DRAFT]", "--config RUN.yaml")
    example: ClassVar[str] = "questions.jsonl out/ --model Qwen/Qwen3-0.6B"

    dry_run: bool = False
    """Print the plan and stop; no model is loaded, nothing is written."""
    task: Literal["generate", "score"] = "generate"
    """What is done with each row: generate writes a text, score computes log-probabilities of given ones."""
    input: InputSettings
    """What to read."""
    output: OutputSettings
    """Where to write."""
    generator: Annotated[GeneratorSettings, Flat(without=frozenset({"sampling"}))]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """The target's distribution and the text's length; a row may override any of it."""
    actors: ActorPool = field(default_factory=ActorPool)
    """The pool of engines."""
    program: ProgramSettings = field(default_factory=ProgramSettings)
    """A program that each row runs, in place of one generation."""
    score: ScoreOptions = field(default_factory=ScoreOptions)
    """What task 'score' scores, and what it compares."""
    learn: LearnSettings = field(default_factory=LearnSettings)
    """A draft that learns from the run's own texts while the run goes on."""
    run: RunSettings = field(default_factory=RunSettings)
    """The run as a whole."""
    # What one line leaves open, by the names of fields, and why it is as it is; None: a file or flags say all.
    chosen: Mapping[str, str] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        backend = backend_of(self.generator)
        if self.generator.models.candidates and (why := self.why_no_trial):
            raise ValueError(f"models.draft is a list, of which a trial takes one, but {why}; name one draft")
        backend.check()
        self.generator.check_hang_timeout("run.hang_timeout_s", self.run.hang_timeout_s)
        if not backend.tells_rounds and self.output.rounds == "all":
            raise ValueError(
                f"output.rounds is 'all', but engine.backend is {self.generator.engine.backend!r}, which does not tell "
                "the tokens that it rejects; leave it out, or use engine.backend 'dray'"
            )
        if self.run.local and self.asks_for_ray:
            raise ValueError(
                f"run.local is set, for a run without Ray, but {self.asks_for_ray[0]} asks for Ray; drop one of them"
            )
        if self.is_scoring:
            self._refuse_what_writes()
        elif self.score != ScoreOptions():
            raise ValueError("score has fields that are set, but task is 'generate'; set task to 'score', or drop them")

    @property
    def is_scoring(self) -> bool:
        """Whether texts are scored, and none is written."""
        return self.task == "score"

    @property
    def asks_for_ray(self) -> list[str]:
        """The fields that ask for other processes, of which a local run has none."""
        asking = {
            "actors.max_actors": self.actors.max_actors > 1,
            "actors.label_selector": bool(self.actors.label_selector),
            "actors.fallback_label_selectors": bool(self.actors.fallback_label_selectors),
            "learn.every_rows": self.learn.every_rows > 0,
            "program.function": self.program.function is not None,  # a signal would end the program, as if it failed
            "run.ray_address": self.run.ray_address is not None,
            "run.audit_fraction": self.run.audit_fraction > 0,
            **{part.asked_by: True for part in self.generator.apart},
        }
        return [name for name, asks in asking.items() if asks]

    @property
    def beyond_one_process(self) -> list[str]:
        """The fields by which rows are no texts that Dray's own engine writes in one process."""
        asks_for = {
            "task 'score'": self.is_scoring,
            "program.function": self.program.function is not None,
            f"engine.backend {self.generator.engine.backend!r}": not backend_of(self.generator).tells_rounds,
            **{part.asked_by: True for part in self.generator.apart},
        }
        return [name for name, asks in asks_for.items() if asks]

    @property
    def why_no_trial(self) -> str:
        """Why a trial of several drafts could not decide for this run; empty if it could."""
        engine = self.generator.engine
        if engine.verification in TEXT_DEPENDS_ON_DRAFT:
            return f"engine.verification is {engine.verification!r}, under which the text depends on the draft"
        if engine.drafter is not None:
            return f"engine.drafter is {engine.drafter!r}, and a trial takes a drafter, too"
        if self.learn.every_rows:
            return "learn.every_rows is set, for one draft that learns"
        return "".join(
            f"{name} is set, and a trial is of texts that Dray writes in one process"
            for name in self.beyond_one_process[:1]
        )

    @property
    def drafts_to_try(self) -> tuple[str, ...]:
        """The drafts of which a trial takes one before the run begins; none where models.draft says which."""
        models = self.generator.models
        return (OWN_HEAD_IF_ANY,) if models.draft == OWN_HEAD_IF_ANY and not self.why_no_trial else models.candidates

    def _refuse_what_writes(self) -> None:
        """Raise ValueError for a field that says how texts are written, of which a run of scores has none."""
        models, engine = self.generator.models, self.generator.engine
        is_sampled = bool(self.sampling.names_given) or self.sampling != SamplingSettings()
        wrong = {
            "sampling": is_sampled,
            "models.draft": models.draft is not None,
            f"engine.drafter {engine.drafter!r}": engine.drafter not in (None, "none"),
            f"engine.verification {engine.verification!r}": engine.verification in TEXT_DEPENDS_ON_DRAFT,
            "learn": self.learn != LearnSettings(),
            "placement 'split'": self.generator.has_draft_actors,
            "output.rounds 'all'": self.output.rounds == "all",
        }
        if found := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise ValueError(f"{found[0]} is set, but task is 'score', which writes no text; leave it out")
        if not backend_of(self.generator).scores_rows:
            raise ValueError(f"task is 'score', which Dray's own engine does, but engine.backend is {engine.backend!r}")

    def generator_settings(self) -> GeneratorSettings:
        """Return what the engines get, if the target's own sampling is not asked for; of several drafts none yet."""
        models = replace(self.generator.models, draft=None) if self.drafts_to_try else self.generator.models
        seed, sampling, is_required = self.run.seed, self.sampling.params, self.run.exact == "required"
        return replace(self.generator, models=models, seed=seed, sampling=sampling, is_exact_required=is_required)

    def input_options(self) -> InputOptions:
        """Return what the reader gets."""
        read = (*self.generator.chat.template_columns.values(), *self.score.columns)
        return replace(self.input.options, template_columns=read)


@dataclass(frozen=True, kw_only=True)
class RetryConfig(RunConfig):
    """Runs the rows in errors/ of a corpus again, and only those.

    Takes the configuration that the corpus was generated with. What decides its tokens (models, sampling, seed, input)
    must be as it was; all else may change: slots, actors, machines, a mended storage, a newer Dray. A row that comes
    through gets the tokens it would have had the first time and moves to data/; one that fails again stays in errors/
    with its newest message, and its column `attempt` counts one more. --dry-run lists what failed, and why.
    """

    dry_run: bool = False
    """List the failed rows by stage and error type, and stop."""
    stage: tuple[Stage, ...] = ()
    """Only rows that failed at this stage; give it again for another stage."""
    error_type: tuple[str, ...] = ()
    """Only rows with this error type, such as WorkerDied; give it again for another type."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(RunConfig):
    """Generates a corpus: prompts in, Parquet with acceptance counts out, exactly once, resumable."""

    estimate: Annotated[int, pydantic.Field(ge=10)] | None = None
    """Do about this many rows, spread over the input, with one engine and in a folder that is deleted afterwards; then
    print what the run would take."""
    price_per_hour: Annotated[float, pydantic.Field(ge=0)] | None = None
    """With --estimate: the price of an hour of what one engine holds, in any currency."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.price_per_hour is not None and self.estimate is None:
            raise ValueError("price_per_hour is set, but estimate is not, which alone reads it; set both")
        if self.estimate is not None and self.dry_run:
            raise ValueError("dry_run loads no model, and estimate generates rows; set one of the two")
