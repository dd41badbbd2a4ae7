"""Keyword arguments by the names of docs/configuration.md, sorted into its sections."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from actors.settings import ChatSettings, EngineSettings, GeneratorSettings, ModelSettings
from decoding.sampling_params import SamplingParams
from jobs.config.fields import own_fields
from pipeline.inputs.options import InputOptions
from pipeline.streaming.pool import ActorPool

_KINDS = {
    "models": ModelSettings,
    "chat": ChatSettings,
    "engine": EngineSettings,
    "sampling": SamplingParams,
    "input": InputOptions,
    "actors": ActorPool,
}
OF_MODEL, OF_ROWS = ("models", "chat", "engine"), ("sampling", "input")


def by_section(given: Mapping[str, Any], *sections: str) -> dict[str, dict[str, Any]]:
    """Return the values of each section by their names. Raises ValueError for a name that no section has."""
    owners = {field.name: section for section in sections for field in own_fields(_KINDS[section])}
    found: dict[str, dict[str, Any]] = {section: {} for section in _KINDS}
    for name, value in given.items():
        if name not in owners:
            near = get_close_matches(name, owners, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no option {name!r} here{meant} (docs/configuration.md: {', '.join(sections)})")
        found[owners[name]][name] = value
    return found


def settings_of(target: str, draft: str | None, values: Mapping[str, dict[str, Any]]) -> GeneratorSettings:
    """Return the settings of these models, with what is given for them."""
    models = ModelSettings(target=target, draft=draft, **values["models"])
    engine = EngineSettings(**values["engine"])
    return GeneratorSettings(models=models, chat=ChatSettings(**values["chat"]), engine=engine)


def input_of(settings: GeneratorSettings, values: Mapping[str, dict[str, Any]]) -> InputOptions:
    """Return how rows are read for a model with these settings."""
    given = dict(values["input"])
    carried = given.get("carry_columns", ())
    given["carry_columns"] = (carried,) if isinstance(carried, str) else tuple(carried)
    return InputOptions(**given, template_columns=tuple(settings.chat.template_columns.values()))
