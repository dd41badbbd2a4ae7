"""Keyword arguments of a call: fields of the configuration without their sections, checked as those of a file are."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

from actors.settings import ChatSettings, EngineSettings, GeneratorSettings, ModelSettings
from decoding.grammar.definition import problem_with
from decoding.sampling_params import SamplingParams
from jobs.config.fields import Flat
from jobs.config.loading import checked
from pipeline.inputs.options import InputOptions
from pipeline.streaming.pool import ActorPool

_Options = TypeVar("_Options")


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """What is asked for rows, of a model that is loaded."""

    sampling: Annotated[SamplingParams, Flat()] = field(default_factory=SamplingParams)
    input: Annotated[InputOptions, Flat()] = field(default_factory=InputOptions)
    seed: int = 0
    """Seed of all noise at temperature > 0."""

    def __post_init__(self) -> None:
        structured = self.sampling.structured
        if structured is not None and (problem := problem_with(structured)):
            raise ValueError(problem)

    def input_of(self, settings: GeneratorSettings) -> InputOptions:
        """Return how rows are read for a model with these settings."""
        return replace(self.input, template_columns=tuple(settings.chat.template_columns.values()))


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models are loaded, and how."""

    models: Annotated[ModelSettings, Flat()]
    chat: Annotated[ChatSettings, Flat()] = field(default_factory=ChatSettings)
    engine: Annotated[EngineSettings, Flat()] = field(default_factory=EngineSettings)

    @property
    def settings(self) -> GeneratorSettings:
        """The settings of these models. Raises ValueError for what does not go together."""
        return GeneratorSettings(models=self.models, chat=self.chat, engine=self.engine)


@dataclass(frozen=True, kw_only=True)
class CallOptions(RowOptions, ModelOptions):
    """What a call asks for that names its model."""


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(CallOptions):
    """What a call asks for whose rows are a `ray.data.Dataset`."""

    actors: Annotated[ActorPool, Flat()] = field(default_factory=ActorPool)


def options_of(kind: type[_Options], given: Mapping[str, Any], **named: Any) -> _Options:
    """Return the options that are given, and those that have parameters of their own. Raises ValueError."""
    if "target" in named and "target" in given:
        raise ValueError("target is another name of the argument model; drop one of them")
    paths = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in named.items()}
    sections = ", ".join(each.name for each in fields(kind) if each.name != "seed")  # type: ignore[arg-type]
    return checked(kind, {**given, **paths}, f"docs/configuration.md: {sections}")
