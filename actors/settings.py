"""GeneratorSettings: everything an engine needs to turn rows into generations, as plain data that travels to actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decoding.device import Device
from decoding.model import DType
from decoding.options import EngineOptions
from decoding.sampling_params import SamplingParams


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
class GeneratorSettings:
    """Models, engine, sampling and text settings of one run."""

    models: ModelSettings
    engine: EngineOptions = field(default_factory=EngineOptions)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    chat: ChatSettings = field(default_factory=ChatSettings)
    seed: int = 0
