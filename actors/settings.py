"""GeneratorSettings: everything an engine needs to turn rows into generations, as plain data that travels to actors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.drafters import NEED_A_MODEL
from decoding.engine.options import EngineOptions
from decoding.sampling_params import SamplingParams

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which models, where and how exact."""

    target: str  # a folder, or a hub name
    draft: str | None = None
    tokenizer: str | None = None  # None: the target's
    device: Device = "auto"
    dtype: DType = "auto"


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How messages become a prompt."""

    chat_template: str | None = None  # Jinja text; None: the tokenizer's own
    system_prompt: str | None = None  # goes before messages that do not begin with one
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # template variables of the whole run
    template_columns: Mapping[str, str] = field(default_factory=dict)  # template variable -> column


Placement = Literal["colocated", "split"]
DraftStrategy = Literal["PACK", "SPREAD"]
_OWN_RESOURCES = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def _check_holdings(
    section: str, num_cpus: float, num_gpus: float, memory: int | None, resources: Mapping[str, float]
) -> None:
    """Raise ValueError for what Ray would not let an actor hold."""
    for name, amount in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if amount < 0:
            raise ValueError(f"{section}.{name} must not be negative, got {amount}")
    if num_gpus > 1 and num_gpus != int(num_gpus):
        raise ValueError(f"{section}.num_gpus must be a whole number, or a share of one GPU, got {num_gpus}")
    if memory is not None and memory < 1:
        raise ValueError(f"{section}.memory must be a positive number of bytes, got {memory}")
    for name, amount in resources.items():
        if name in _OWN_RESOURCES:
            raise ValueError(
                f"{section}.resources names {name!r}; that is what {section}.{_OWN_RESOURCES[name]} is for"
            )
        if amount <= 0 or (amount > 1 and amount != int(amount)):
            raise ValueError(
                f"{section}.resources: {name!r} must be a whole number, or a share between 0 and 1, got {amount}"
            )


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """Draft actors, for placement "split": how many, what each holds and where, and how long anybody waits for them."""

    per_target: float = 1.0  # draft actors for a generator: 2 are two for each, 0.5 is one for two of them
    num_cpus: float = 1.0  # logical CPUs a draft actor holds
    num_gpus: float = 0.0  # GPUs it holds, also a share of one
    memory: int | None = None  # bytes it holds
    resources: Mapping[str, float] = field(default_factory=dict)  # custom resources it holds
    accelerator_type: str | None = None  # a name of ray.util.accelerators, such as H100
    label_selector: Mapping[str, str] = field(default_factory=dict)  # what its node's labels must be
    strategy: DraftStrategy = "PACK"  # of the placement group: on few nodes, or on different ones
    timeout_s: float = 2.0  # a round waits so long for its draft, and then goes on without
    start_timeout_s: float = 300.0  # a generator waits so long for its draft actors when it starts
    most_reconnects: int = 16  # draft actors that a generator may lose; after the next it does without for good
    most_candidates: int = 64  # of a draft's law under rejection: what crosses for each drafted token; 0: all tokens

    def __post_init__(self) -> None:
        """Check every field."""
        whole = self.per_target if self.per_target >= 1 else 1 / self.per_target if self.per_target > 0 else 0.0
        if not whole or abs(whole - round(whole)) > 1e-2:
            raise ValueError(
                "drafts.per_target must be a whole number of draft actors for a generator, or 1 over the generators "
                f"that share one (0.5, 0.25, ...), got {self.per_target}"
            )
        for name in ("most_reconnects", "most_candidates"):
            if getattr(self, name) < 0:
                raise ValueError(f"drafts.{name} must not be negative, got {getattr(self, name)}")
        _check_holdings("drafts", self.num_cpus, self.num_gpus, self.memory, self.resources)
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

    @property
    def demand(self) -> dict[str, float]:
        """What the scheduler sets aside for a draft actor, by the names under which a node lists its resources."""
        demand = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0)}
        demand |= {} if self.accelerator_type is None else {f"accelerator_type:{self.accelerator_type}": 0.001}
        return {name: amount for name, amount in (demand | dict(self.resources)).items() if amount}


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """How the target is cut, and what each stage holds. A ValueError says which value is wrong."""

    count: int = 1
    tensor_parallel: int = 1  # ranks of each stage: processes of one node that share out every layer's weights
    num_cpus: float = 1.0  # of each process
    num_gpus: float = 0.0
    memory: int | None = None  # bytes
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy = "PACK"
    most_restarts: int = 10  # in a row, without a step done in between
    timeout_s: float = 120.0  # for a step of all stages; one that takes longer hangs, and is replaced
    start_timeout_s: float = 480.0  # for loading the weights
    room_timeout_s: float = math.inf  # for places on the cluster

    def __post_init__(self) -> None:
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
        for name in ("timeout_s", "start_timeout_s", "room_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"stages.{name} is {getattr(self, name)}; use a number of seconds above 0")
        _check_holdings("stages", self.num_cpus, self.num_gpus, self.memory, self.resources)

    @property
    def is_apart(self) -> bool:
        """Whether the target has processes of its own; otherwise it stays in the generator's."""
        return self.count > 1 or self.tensor_parallel > 1

    @property
    def longest_step_s(self) -> float:
        """Seconds that a step may take over which stages are replaced: it, those in flight, new stages, and it again.

        The loading of weights is in it, which all new stages do at once.
        """
        return 3 * self.timeout_s + self.start_timeout_s

    @property
    def bundle(self) -> dict[str, float]:
        """What one stage holds with all its ranks, as Ray counts it: on one node, since it is one bundle."""
        rank = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0), **self.resources}
        return {name: amount * self.tensor_parallel for name, amount in rank.items() if amount}


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """Models, engine, sampling and text settings of one run, and where the draft model stands."""

    models: ModelSettings
    engine: EngineOptions = field(default_factory=EngineOptions)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    chat: ChatSettings = field(default_factory=ChatSettings)
    stages: StageSettings = field(default_factory=StageSettings)
    seed: int = 0
    placement: Placement = "colocated"  # the draft model in the generator's process, or in draft actors
    drafts: DraftSettings = field(default_factory=DraftSettings)  # of placement "split"

    def __post_init__(self) -> None:
        """Check what fields mean together."""
        if self.placement not in ("colocated", "split"):
            raise ValueError(f"placement must be 'colocated' or 'split', got {self.placement!r}")
        if self.placement == "split":
            drafter = self.engine.pick_drafter(self.models.draft)
            if drafter not in NEED_A_MODEL:
                why = "no draft model is named" if self.models.draft is None else f"engine.drafter is {drafter!r}"
                raise ValueError(
                    f"placement is 'split', which puts the draft model in actors of its own, but {why}; name "
                    "models.draft with drafter 'model' or 'hybrid', or use placement 'colocated'"
                )

    @property
    def num_lanes(self) -> int:
        """Lanes of an engine: enough that every process of it has something to do."""
        if self.placement == "colocated":
            return self.stages.count
        return max(2, self.drafts.num_per_generator, self.stages.count + 1)
