"""GeneratorSettings: everything an engine needs to turn rows into generations, as plain data that travels to actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from decoding.device import Device
from decoding.model import DType
from decoding.options import EngineOptions
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


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """How the target is cut, and what each stage holds. A ValueError says which value is wrong."""

    count: int = 1  # 1: the target stays in the generator's process
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int | None = None  # bytes
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy = "PACK"
    most_restarts: int = 10  # in a row, without a step done in between
    timeout_s: float = 120.0  # for a step of all stages; one that takes longer hangs, and is replaced
    start_timeout_s: float = 600.0  # for a place, and again for loading the weights

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"stages.count is {self.count}; a target has at least 1 stage")
        if self.most_restarts < 0:
            raise ValueError(f"stages.most_restarts is {self.most_restarts}; use 0 or more")
        for name in ("timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"stages.{name} is {getattr(self, name)}; use a number of seconds above 0")
        if self.num_cpus < 0 or self.num_gpus < 0:
            raise ValueError("stages.num_cpus and stages.num_gpus cannot be negative")

    @property
    def bundle(self) -> dict[str, float]:
        """What one stage holds, as Ray counts it."""
        bundle = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0), **self.resources}
        return {name: amount for name, amount in bundle.items() if amount}


@dataclass(frozen=True, kw_only=True)
class GeneratorSettings:
    """Models, engine, sampling and text settings of one run."""

    models: ModelSettings
    engine: EngineOptions = field(default_factory=EngineOptions)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    chat: ChatSettings = field(default_factory=ChatSettings)
    stages: StageSettings = field(default_factory=StageSettings)
    seed: int = 0
