"""GeneratorSettings: everything an engine needs to turn rows into generations, as plain data that travels to actors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from decoding.choices import NEED_A_HEAD, NEED_A_MODEL, Device, DType
from decoding.engine.options import DraftVocabulary, EngineOptions
from decoding.sampling_params import SamplingParams
from pipeline.streaming.actor_resources import ActorResources
from pipeline.text.reasoning import ReasoningName
from pipeline.text.tools.families import FamilyName

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which models, where and how exact."""

    target: str
    """Target model: a folder with safetensors or a LoRA adapter, a GGUF file, or a hub name."""
    draft: str | None = None
    """Draft: a model, for drafters 'model' and 'hybrid', or a head, for 'eagle3' or 'dflash' and 'hybrid'."""
    draft_vocabulary: DraftVocabulary = "same"
    """Tokens of a draft model: the same as the target's, or mapped to them, for a model with another tokenizer."""
    tokenizer: str | None = None
    """Folder of the tokenizer; the target's unless given."""
    device: Device = "auto"
    """Where to run; auto takes GPUs if the cluster has any."""
    dtype: DType = "auto"
    """Type of weights and arithmetic; auto is float32 on CPU (not with FP8 weights), else the checkpoint's."""


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


Backend = Literal["dray", "vllm"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings(EngineOptions):
    """Which engine computes the tokens, and how it runs."""

    backend: Backend = "dray"
    """Engine: dray proves its text; vllm runs what vLLM runs, with the same rows, counts and commits."""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's own engine (EngineArgs), for backend 'vllm'; also lora, the folder of an adapter."""
    vllm_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that vLLM reads in its process, such as VLLM_BATCH_INVARIANT."""
    names_given: frozenset[str] | None = field(default=None, compare=False)  # of the fields that are set, where known

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend not in ("dray", "vllm"):
            raise ValueError(f"engine.backend must be 'dray' or 'vllm', got {self.backend!r}")
        if self.backend == "dray":
            for name in ("vllm", "vllm_env"):
                if getattr(self, name):
                    raise ValueError(
                        f"engine.{name} is {getattr(self, name)!r}, which only engine.backend 'vllm' reads; drop one"
                    )
            return
        for name, (vllms, instead) in _ONLY_DRAYS.items():
            value = getattr(self, name)
            if name in (self.names_given or ()) and value != vllms:
                raise ValueError(
                    f"engine.{name} is {value!r}, for Dray's own engine: {instead}; leave it out with backend 'vllm'"
                )
        if self.drafter in ("hybrid", *NEED_A_HEAD):
            raise ValueError(
                f"engine.drafter {self.drafter!r} is for Dray's own engine; vLLM has 'model', 'ngram' and 'suffix', "
                "and heads by engine.vllm.speculative_config"
            )

    @property
    def is_repeatable(self) -> bool:
        """Whether a row that is written twice has the same tokens both times, whatever drafts for it."""
        return self.backend == "dray" and self.verification == "coupled"


_ONLY_DRAYS: dict[str, tuple[str | None, str]] = {  # the value that says what vLLM does, and why it has no other
    "verification": ("rejection", "vLLM verifies drafts by rejection, and only Dray's engine has 'coupled'"),
    "exact": ("auto", "vLLM's own switch is VLLM_BATCH_INVARIANT in engine.vllm_env"),
    "draft_window": (None, "vLLM's drafts see all of a row"),
    "draft_length": ("fixed", "vLLM drafts engine.num_speculative_tokens in every round"),
    "max_prefill_tokens": (None, "vLLM's is engine.vllm.max_num_batched_tokens"),
}
Placement = Literal["colocated", "split"]
DraftStrategy = Literal["PACK", "SPREAD"]


@dataclass(frozen=True, kw_only=True)
class DraftSettings(ActorResources):
    """Draft actors, for placement "split": how many, what each holds and where, and how long engines wait for them."""

    section: ClassVar[str] = "drafts"
    actor: ClassVar[str] = "draft actor"

    per_target: float = 1.0
    """Draft actors for an engine: 2 are two for each engine, 0.5 is one for two engines."""
    num_gpus: float = 0.0
    """GPUs that each draft actor holds, also a share of one; without one it runs on CPU."""
    strategy: DraftStrategy = "PACK"
    """Strategy of their placement group: PACK places them on few nodes, SPREAD on many."""
    timeout_s: float = 2.0
    """Seconds that a round waits for its draft before it goes on without."""
    start_timeout_s: float = 300.0
    """Seconds that an engine waits for its draft actors when it starts."""
    most_reconnects: int = 16
    """Draft actors that an engine may lose before it goes on without drafts for good."""
    most_candidates: int = 64
    """Most likely tokens that a draft actor draws from, and whose probabilities it sends, unless coupled; 0: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.per_target if self.per_target >= 1 else 1 / self.per_target if self.per_target > 0 else 0.0
        if not whole or abs(whole - round(whole)) > 1e-2:
            raise ValueError(
                "drafts.per_target must be a whole number of draft actors for an engine, or 1 over the engines "
                f"that share one (0.5, 0.25, ...), got {self.per_target}"
            )
        for name in ("most_reconnects", "most_candidates"):
            if getattr(self, name) < 0:
                raise ValueError(f"drafts.{name} must not be negative, got {getattr(self, name)}")
        for name in ("timeout_s", "start_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"drafts.{name} must be above 0 seconds, got {getattr(self, name)}")
        if self.strategy not in ("PACK", "SPREAD"):
            raise ValueError(f"drafts.strategy must be 'PACK' or 'SPREAD', got {self.strategy!r}")

    @property
    def num_per_generator(self) -> int:
        """Draft actors that a generator has."""
        return max(1, round(self.per_target))

    @property
    def num_sharing(self) -> int:
        """Generators that a draft actor serves."""
        return max(1, round(1 / self.per_target))

    def num_for(self, num_generators: int) -> int:
        """Return how many draft actors these generators have together."""
        return -(-num_generators * self.num_per_generator // self.num_sharing)


@dataclass(frozen=True, kw_only=True)
class StageSettings(ActorResources):
    """How the target is cut, and what each process of a stage holds. A ValueError says which value is wrong."""

    section: ClassVar[str] = "stages"
    actor: ClassVar[str] = "process of a stage"

    count: int = 1
    """Stages of each engine's target: ranges of its layers."""
    tensor_parallel: int = 1
    """Processes (ranks) of one node that share every layer of a stage."""
    strategy: Strategy = "PACK"
    """Strategy of their placement group: on few nodes, or on many; STRICT_ ones accept nothing else."""
    most_restarts: int = 10
    """Attempts to bring a lost stage up again before the engine fails."""
    timeout_s: float = 120.0
    """Seconds for a step of all stages; a stage that takes longer is replaced."""
    start_timeout_s: float = 480.0
    """Seconds for loading the weights; a stage that takes longer is replaced."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count < 1:
            raise ValueError(f"stages.count is {self.count}; a target has at least 1 stage")
        if self.tensor_parallel < 1:
            raise ValueError(f"stages.tensor_parallel is {self.tensor_parallel}; a stage has at least 1 process")
        if self.tensor_parallel > 1 and self.num_gpus not in (0, 1):
            raise ValueError(
                f"stages.num_gpus is {self.num_gpus:g} and stages.tensor_parallel {self.tensor_parallel}; each of the "
                "processes that share out a layer takes one whole GPU, so use 1 (or 0 without GPUs)"
            )
        if self.most_restarts < 0:
            raise ValueError(f"stages.most_restarts is {self.most_restarts}; use 0 or more")
        for name in ("timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"stages.{name} is {getattr(self, name)}; use a number of seconds above 0")

    @property
    def is_apart(self) -> bool:
        """Whether the target has processes of its own; otherwise it stays in the generator's."""
        return self.count > 1 or self.tensor_parallel > 1

    @property
    def longest_step_s(self) -> float:
        """Seconds of a step over which stages are replaced: it, those in flight, loading all at once, and it again."""
        return 3 * self.timeout_s + self.start_timeout_s

    @property
    def bundle(self) -> dict[str, float]:
        """What one stage holds with all its ranks, as Ray counts it: on one node, since it is one bundle."""
        return {name: amount * self.tensor_parallel for name, amount in self.demand.items()}


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
    placement: Placement = "colocated"
    """Draft model in the engine's process (colocated), or in draft actors (split)."""
    drafts: DraftSettings = field(default_factory=DraftSettings)
    """The draft actors of placement 'split'."""
    stages: StageSettings = field(default_factory=StageSettings)
    """The target in processes of its own, by layers and within them, if it is too large for a node or a GPU."""
    seed: int = 0  # of all noise
    is_exact_required: bool = False  # whether an engine whose texts depend on the batch is refused

    def __post_init__(self) -> None:
        if self.placement not in ("colocated", "split"):
            raise ValueError(f"placement must be 'colocated' or 'split', got {self.placement!r}")
        if self.engine.backend == "vllm" and (self.placement == "split" or self.stages.is_apart):
            wanted = "placement 'split'" if self.placement == "split" else "stages.count and stages.tensor_parallel"
            raise ValueError(
                f"{wanted} are for Dray's own engine; with engine.backend 'vllm' the draft runs beside the target, and "
                "engine.vllm.tensor_parallel_size shares out a model over the GPUs of an actor (actors.num_gpus)"
            )
        self._check_draft_vocabulary()
        if self.engine.exact == "on" and self.stages.is_apart:
            raise ValueError(
                "engine.exact is 'on', but a target in stages or ranks runs the GPU library's products, whose numbers "
                "depend on the batch; use engine.exact 'auto', or a target in one process"
            )
        if self.placement == "split" and self.engine.draft_window:
            raise ValueError(
                f"engine.draft_window is {self.engine.draft_window}, for a draft in the target's process, but "
                "placement is 'split'; leave it out, or use placement 'colocated'"
            )
        if self.placement == "split":
            drafter = self.engine.pick_drafter(self.models.draft)
            if self.engine.drafts_with_a_head(self.models.draft):
                raise ValueError(
                    f"placement is 'split', but models.draft ({self.models.draft}) is a draft head, which reads the "
                    "hidden states of its target in the same process; use placement 'colocated', or a draft model"
                )
            if drafter not in NEED_A_MODEL:
                why = "no draft model is named" if self.models.draft is None else f"engine.drafter is {drafter!r}"
                raise ValueError(
                    f"placement is 'split', which puts the draft model in actors of its own, but {why}; name "
                    "models.draft with drafter 'model' or 'hybrid', or use placement 'colocated'"
                )

    def with_context(self, max_model_len: int) -> "GeneratorSettings":
        """Return the settings with the context that an engine has settled on."""
        return replace(self, engine=replace(self.engine, max_model_len=max_model_len))

    def _check_draft_vocabulary(self) -> None:
        self.engine.check_draft_vocabulary(self.models.draft, self.models.draft_vocabulary)
        if self.models.draft_vocabulary == "same":
            return
        if self.engine.backend == "vllm":
            raise ValueError(
                "models.draft_vocabulary is 'map', for Dray's own engine; for vLLM leave it out and say "
                "engine.vllm.speculative_config with use_heterogeneous_vocab"
            )
        if self.placement == "split":
            raise ValueError(
                "models.draft_vocabulary is 'map', but placement is 'split', whose draft actors read the target's "
                "tokens; use placement 'colocated'"
            )

    @property
    def why_draft_stays(self) -> str | None:
        """Why the draft of a run with these settings cannot be replaced; None if it can."""
        drafter = None if self.engine.backend == "vllm" else self.engine.pick_drafter(self.models.draft)
        if self.engine.backend == "vllm":
            return "engine.backend is 'vllm', which keeps the draft that it was loaded with; only 'dray' replaces it"
        if self.engine.verification != "coupled":
            return (
                f"engine.verification is {self.engine.verification!r}, under which the text depends on the draft; only "
                "under 'coupled' it may be replaced"
            )
        if drafter not in NEED_A_MODEL:
            return f"the drafter is {drafter!r}, which has no draft model or head to replace"
        return None

    def at_temperature(self, temperature: float) -> "GeneratorSettings":
        """Return these settings with another temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    def check_hang_timeout(self, name: str, hang_timeout_s: float) -> None:
        """Raise ValueError if the timeout `name` would end a process that waits for drafts or replaces stages."""
        drafts_s = self.num_lanes * self.drafts.timeout_s
        if self.placement == "split" and drafts_s >= hang_timeout_s / 2:
            raise ValueError(
                f"drafts.timeout_s is {self.drafts.timeout_s:g}, so that a step of an engine with {self.num_lanes} "
                f"lanes may wait for {drafts_s:g} seconds; that must be less than half of {name}, which is "
                f"{hang_timeout_s:g}: lower the one or raise the other"
            )
        if self.stages.is_apart and hang_timeout_s <= self.stages.longest_step_s:
            raise ValueError(
                f"{name} is {hang_timeout_s:g}, but an engine that replaces stages may need "
                f"{self.stages.longest_step_s:g} seconds for a step (3 x stages.timeout_s + stages.start_timeout_s), "
                f"and would be ended over it; raise {name}, or lower the others"
            )

    @property
    def num_lanes(self) -> int:
        """Lanes of an engine: enough that every process of it has something to do."""
        if self.placement == "colocated":
            return self.stages.count
        return max(2, self.drafts.num_per_generator, self.stages.count + 1)
