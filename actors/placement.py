"""Placement: the parts of an engine that can have processes of their own, and what those hold and wait for."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from decoding.choices import NEED_A_MODEL
from decoding.engine.options import DraftVocabulary, EngineOptions
from pipeline.limits import check_numbers
from pipeline.streaming.pool import ActorResources

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
DraftStrategy = Literal["PACK", "SPREAD"]


@dataclass(frozen=True, kw_only=True)
class DraftSettings(ActorResources):
    """Draft actors, for placement "split": how many, what each holds and where, and how long engines wait for them."""

    section: ClassVar[str] = "drafts"
    actor: ClassVar[str] = "draft actor"
    noun: ClassVar[str] = "draft actors"
    asked_by: ClassVar[str] = "placement 'split'"
    where: ClassVar[str] = "draft actors"

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
        counts, seconds = ("most_reconnects", "most_candidates"), ("timeout_s", "start_timeout_s")
        check_numbers(self, "drafts.", not_negative=counts, seconds=seconds)
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

    @property
    def bundle(self) -> dict[str, float]:
        """What one draft actor holds, as Ray counts it."""
        return self.demand

    @property
    def gpus_of_engine(self) -> float:
        """GPUs of an engine's draft actors, or its share of one."""
        return self.num_gpus * self.per_target

    def check_together(self, engine: EngineOptions, draft: str | None, vocabulary: DraftVocabulary) -> None:
        """Raise ValueError if draft actors cannot draft with this draft and these options."""
        if vocabulary != "same":
            raise ValueError(
                "models.draft_vocabulary is 'map', but placement is 'split', whose draft actors read the target's "
                "tokens; use placement 'colocated'"
            )
        if engine.draft_window:
            raise ValueError(
                f"engine.draft_window is {engine.draft_window}, for a draft in the target's process, but "
                "placement is 'split'; leave it out, or use placement 'colocated'"
            )
        if engine.drafts_with_a_head(draft):
            raise ValueError(
                f"placement is 'split', but models.draft ({draft}) is a draft head, which reads the "
                "hidden states of its target in the same process; use placement 'colocated', or a draft model"
            )
        if engine.pick_drafter(draft) not in NEED_A_MODEL:
            why = "no draft model is named" if draft is None else f"engine.drafter is {engine.drafter!r}"
            raise ValueError(
                f"placement is 'split', which puts the draft model in actors of its own, but {why}; name "
                "models.draft with drafter 'model' or 'hybrid', or use placement 'colocated'"
            )

    def check_hang_timeout(self, name: str, hang_timeout_s: float, num_lanes: int) -> None:
        """Raise ValueError if the timeout `name` would end a process whose lanes all wait for drafts."""
        drafts_s = num_lanes * self.timeout_s
        if drafts_s >= hang_timeout_s / 2:
            raise ValueError(
                f"drafts.timeout_s is {self.timeout_s:g}, so that a step of an engine with {num_lanes} "
                f"lanes may wait for {drafts_s:g} seconds; that must be less than half of {name}, which is "
                f"{hang_timeout_s:g}: lower the one or raise the other"
            )


@dataclass(frozen=True, kw_only=True)
class StageSettings(ActorResources):
    """How the target is cut, and what each process of a stage holds. A ValueError says which value is wrong."""

    section: ClassVar[str] = "stages"
    actor: ClassVar[str] = "process of a stage"
    noun: ClassVar[str] = "stages"
    asked_by: ClassVar[str] = "stages.count and stages.tensor_parallel"

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
        check_numbers(self, "stages.", at_least_1=("count", "tensor_parallel"), not_negative=("most_restarts",))
        check_numbers(self, "stages.", seconds=("timeout_s", "start_timeout_s"))
        if self.tensor_parallel > 1 and self.num_gpus not in (0, 1):
            raise ValueError(
                f"stages.num_gpus is {self.num_gpus:g} and stages.tensor_parallel {self.tensor_parallel}; each of the "
                "processes that share out a layer takes one whole GPU, so use 1 (or 0 without GPUs)"
            )

    @property
    def is_apart(self) -> bool:
        """Whether the target has processes of its own; otherwise it stays in the generator's."""
        return self.count > 1 or self.tensor_parallel > 1

    @property
    def where(self) -> str:
        """What the target is in, for a reader."""
        ranks = "" if self.tensor_parallel == 1 else f" of {self.tensor_parallel} processes"
        return f"{'1 stage' if self.count == 1 else f'{self.count} stages'}{ranks}"

    def num_for(self, num_generators: int) -> int:
        """Return how many stages these generators have together."""
        return num_generators * self.count

    @property
    def gpus_of_engine(self) -> float:
        """GPUs of all processes of an engine's target."""
        return self.num_gpus * self.count * self.tensor_parallel

    def check_hang_timeout(self, name: str, hang_timeout_s: float, num_lanes: int) -> None:
        """Raise ValueError if the timeout `name` would end a process that replaces stages.

        The longest step: the step itself, the steps in flight, loading all stages at once, and the step again.
        """
        longest_step_s = 3 * self.timeout_s + self.start_timeout_s
        if hang_timeout_s <= longest_step_s:
            raise ValueError(
                f"{name} is {hang_timeout_s:g}, but an engine that replaces stages may need "
                f"{longest_step_s:g} seconds for a step (3 x stages.timeout_s + stages.start_timeout_s), "
                f"and would be ended over it; raise {name}, or lower the others"
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What one stage holds with all its ranks, as Ray counts it: on one node, since it is one bundle."""
        return {name: amount * self.tensor_parallel for name, amount in self.demand.items()}
