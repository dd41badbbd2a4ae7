"""Settings as plain data that travels to actors: all that an engine needs to turn rows into generations, and the limits
of programs and of replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from actors.placement import DraftSettings, StageSettings
from decoding.choices import Device, DrafterName, DType
from decoding.engine.options import MOST_LANES, DraftVocabulary, EngineOptions
from decoding.sampling_params import SamplingParams
from decoding.scope import Scope
from pipeline.limits import check_numbers
from pipeline.text.answer_parts import ReasoningName
from pipeline.text.tools.format import FamilyName

# Of an engine whose GPU's memory decides. A round of 256 rows of an 8B model takes 28 ms where one of 128 takes 17, so
# each further row waits longer and brings less; it is vLLM's own number, too.
MOST_SLOTS = 256
_LONGEST_STEP_S = 60.0  # that an engine may wait for drafts of all its lanes, if it chooses their number


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which models, where and how exact."""

    several: ClassVar[Mapping[str, str]] = {"draft": "candidates"}  # a field that may be a list, and its place

    target: str
    """Target model: a folder with safetensors or a LoRA adapter, a GGUF file, or a hub name."""
    draft: str | None = None
    """Draft: a model, or a head; 'mtp' is the head in the target's own files. Of a list, which may name drafters that
    have no model, too (suffix, ngram, none), a run uses the fastest (docs/tuning.md). 'auto' is the list mtp, suffix,
    ngram, none; where no trial can be made it is mtp, if there is one."""
    candidates: tuple[str, ...] = ()  # the drafts of a list; `draft` is None then
    draft_vocabulary: DraftVocabulary = "same"
    """Tokens of a draft model: the same as the target's, or mapped to them, for a model with another tokenizer."""
    tokenizer: str | None = None
    """Folder of the tokenizer; the target's unless given."""
    device: Device = "auto"
    """Where to run; auto takes GPUs if the cluster has any."""
    dtype: DType = "auto"
    """Type of weights and arithmetic; auto is float32 on CPU (not with FP8 weights), else the checkpoint's."""

    def __post_init__(self) -> None:
        draft: Any = self.draft
        if isinstance(draft, list):  # as a configuration has several; a command line makes a list of one, too
            object.__setattr__(self, "draft", draft[0] if len(draft) == 1 else None)
            object.__setattr__(self, "candidates", tuple(draft) if len(draft) > 1 else ())


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How messages become a prompt."""

    chat_template: str | None = None
    """Jinja template in place of the tokenizer's own: its text, or the path of a file with it."""
    template_name: str | None = None
    """Name of the tokenizer's chat template for all rows; unless given tool_use with tools and else default."""
    moment: str | None = None
    """Time that templates are told (2026-01-31T12:00:00); unless given the run's begin, or that of each request."""
    system_prompt: str | None = None
    """System message before chats that begin with none: its text, or the path of a file with it."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Template variables with one value for the run."""
    template_columns: Mapping[str, str] = field(default_factory=dict)
    """Template variables whose values come from columns: variable to column."""
    tool_calls: FamilyName = "auto"
    """Format of calls: auto is that of the chat template (docs/tools.md)."""
    reasoning: ReasoningName = "auto"
    """Tags around thoughts: auto finds those of the chat template; none leaves thoughts in the text."""

    def __post_init__(self) -> None:
        if self.moment is not None:
            try:
                datetime.fromisoformat(self.moment)
            except ValueError as error:
                raise ValueError(
                    f"chat.moment must be a date and a time such as 2026-01-31T12:00:00, got {self.moment!r}"
                ) from error


@dataclass(frozen=True, kw_only=True)
class EngineSettings(EngineOptions):
    """Which engine computes the tokens, and how it runs."""

    backend: Literal["dray", "vllm"] = "dray"
    """Engine: dray proves its text; vllm runs what vLLM runs, with the same rows, counts and commits."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's own engine (EngineArgs), for backend 'vllm'; also lora, the folder of an adapter."""
    vllm_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that vLLM reads in its process, such as VLLM_BATCH_INVARIANT."""
    names_given: frozenset[str] | None = field(default=None, compare=False)  # of the fields that are set, where known


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """Everything that turns rows into generations, wherever the models run."""

    models: ModelSettings
    """Which models, where and how exact."""
    chat: ChatSettings = field(default_factory=ChatSettings)
    """How messages become a prompt."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """The target's distribution and the text's length; a row may override any of it."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """How an engine runs. In float32 only max_model_len and verification can change a token."""
    placement: Literal["colocated", "split"] = "colocated"
    """Draft model in the engine's process (colocated), or in draft actors (split)."""
    drafts: DraftSettings = field(default_factory=DraftSettings)
    """The draft actors of placement 'split'."""
    stages: StageSettings = field(default_factory=StageSettings)
    """The target in processes of its own, by layers and within them, if it is too large for a node or a GPU."""
    seed: int = 0  # of all noise
    turns: tuple[tuple[DrafterName, str | None, str], ...] = ()  # drafters that take turns, as `Engine.load` has them
    is_exact_required: bool = False  # whether an engine whose texts depend on the batch is refused

    def __post_init__(self) -> None:
        if self.placement not in ("colocated", "split"):
            raise ValueError(f"placement must be 'colocated' or 'split', got {self.placement!r}")
        if self.models.candidates and self.models.draft_vocabulary != "same":
            raise ValueError(
                f"models.draft_vocabulary is {self.models.draft_vocabulary!r}, but models.draft is a list, and its "
                "drafts have the target's tokens; name one draft, or leave draft_vocabulary out"
            )
        self.engine.check_draft_vocabulary(self.models.draft, self.models.draft_vocabulary)
        if self.engine.num_lanes is not None and not self.apart:
            raise ValueError(
                f"engine.num_lanes is {self.engine.num_lanes}, for engines whose draft or layers are in other "
                "processes, but this one is whole; leave it out, or use placement 'split' or stages.count"
            )

    @property
    def has_draft_actors(self) -> bool:
        """Whether the draft model is in draft actors."""
        return self.placement == "split"

    @property
    def apart(self) -> list[StageSettings | DraftSettings]:
        """The parts of an engine that have processes of their own, beside the actor that drives it; often none."""
        return [*[self.stages] * self.stages.is_apart, *[self.drafts] * self.has_draft_actors]

    @property
    def has_slots_by_memory(self) -> bool:
        """Whether the number of slots is what the GPU of the engine's process has room for.

        It is not where target or draft are in other processes, whose memory this one does not see.
        """
        return self.engine.num_slots == "auto" and self.models.device == "cuda" and not self.apart

    @property
    def most_slots(self) -> int:
        """The most slots that an engine may have; how many it has is known where its GPU is."""
        return MOST_SLOTS if self.has_slots_by_memory else self.engine.slots

    @property
    def num_lanes(self) -> int:
        """Lanes of an engine at least: enough that every process of it has something to do."""
        if self.engine.num_lanes is not None:
            return self.engine.num_lanes
        if not self.has_draft_actors:
            return self.stages.count
        return max(2, self.drafts.num_per_generator, self.stages.count + 1)

    @property
    def most_lanes(self) -> int:
        """Lanes that an engine may have where their number follows from a measured delay.

        A step of them all, each of which may wait for drafts, is no longer than a minute.
        """
        by_patience = int(_LONGEST_STEP_S // self.drafts.timeout_s) if self.has_draft_actors else MOST_LANES
        return self.engine.num_lanes or max(self.num_lanes, min(MOST_LANES, by_patience))

    def check_hang_timeout(self, name: str, hang_timeout_s: float) -> None:
        """Raise ValueError if the timeout `name` would end a process that waits for drafts or replaces stages."""
        for part in self.apart:
            part.check_hang_timeout(name, hang_timeout_s, self.most_lanes)

    def with_draft(self, drafter: DrafterName, draft: str | None) -> GeneratorSettings:
        """Return these settings with one draft, in place of several."""
        window = None if draft is None else self.engine.draft_window
        models = replace(self.models, draft=draft, candidates=())
        return replace(self, models=models, engine=replace(self.engine, drafter=drafter, draft_window=window))

    def at_temperature(self, temperature: float) -> GeneratorSettings:
        """Return these settings with another temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """A program in place of one generation: each row may ask for several, and calls tools between them."""

    function: str | None = None
    """Program that each row runs, as `module:function`, an `async def function(generate, row)` in a module that all
    nodes can import; unless given, a row is one generation."""
    max_turns: int = 64
    """Generations that one sample of a row may ask for; a program that asks for more makes an error row."""
    timeout_s: float = 1800.0
    """Seconds that one sample of a row may take; a program that takes longer makes an error row."""

    def __post_init__(self) -> None:
        _check_function("program.function", self.function)
        check_numbers(self, "program.", at_least_1=("max_turns",), seconds=("timeout_s",))


@dataclass(frozen=True, kw_only=True)
class ValidateSettings:
    """A check of each text by one of function, sql and json_schema: what does not pass is written again."""

    function: str | None = None
    """Function that checks a text, as `module:function`, in a module that all nodes can import: it gets the row as a
    dict, with its text, and returns true, false, or in a text what is wrong."""
    sql: str | None = None
    """Expression over the row's columns that is true for a text that passes, such as `length(text) > 20`; evaluated by
    DuckDB."""
    json_schema: str | None = None
    """JSON Schema that the answer fulfils: JSON text, or the path of a file with it."""
    max_tries: int = 3
    """Texts that are written of a sample at most, each with noise of its own. A row of which none passes is an error
    row."""

    def __post_init__(self) -> None:
        if len(self.checks) > 1:
            raise ValueError(f"run.validate has {' and '.join(self.checks)}; keep one of them")
        if not self.checks and self.max_tries != ValidateSettings.max_tries:
            raise ValueError("run.validate.max_tries is set, but nothing is checked; set function, sql or json_schema")
        _check_function("run.validate.function", self.function)
        check_numbers(self, "run.validate.", at_least_1=("max_tries",))

    @property
    def checks(self) -> dict[str, str]:
        """The check that is asked for, by the name of its field; none where texts are not checked."""
        named = {"function": self.function, "sql": self.sql, "json_schema": self.json_schema}
        return {name: value for name, value in named.items() if value is not None}


def _check_function(field_name: str, name: str | None) -> None:
    module, mark, function = (name or "a:b").partition(":")
    if not mark or not all(part.isidentifier() for part in [*module.split("."), function]):
        raise ValueError(f"{field_name} must be 'module:function', got {name!r}")


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """The limits of a replica, and when it counts as healthy."""

    max_waiting: int = 64
    """Samples that may wait for a slot of an engine; a request beyond them gets 429."""
    hang_timeout_s: float = 900.0
    """Seconds for one step of an engine; a process that takes longer hangs, and is ended."""
    share_drafts: bool = False
    """Look drafts up in the texts of all API keys: a request may be shown what another key's requests wrote."""
    share_prefixes: bool = False
    """Copy what was computed for any API key: cached_tokens and time tell that another key sent a prompt before."""
    fresh_s: float = 10.0  # an engine that wrote a token within this time is healthy; otherwise it is tried
    probe_timeout_s: float = 20.0  # for that trial
    fingerprint: str = ""  # of everything that the tokens depend on; requests for another one are refused
    num_reserved: int | None = None  # slots that rows of batches leave to requests; a quarter unless given

    def __post_init__(self) -> None:
        seconds = ("fresh_s", "probe_timeout_s", "hang_timeout_s")
        check_numbers(self, "serve.", not_negative=("max_waiting",), seconds=seconds)

    def scope_of(self, owner: str) -> Scope:
        """Return the scope of an owner's rows."""
        return Scope("" if self.share_drafts else owner, "" if self.share_prefixes else owner)
