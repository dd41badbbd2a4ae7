"""The models of an endpoint: its own, and its adapters, each merged into a model and then checked."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.engines import backend_of
from actors.engines.loading import load_codec
from actors.identity import chat_identity
from actors.settings import GeneratorSettings
from decoding.checkpoint.supported import adapter_base
from endpoint.service.served_model import ServedModel, ServiceSettings
from jobs.config.serve import ServeConfig
from jobs.driver.chosen import folder_of
from pipeline.run.fingerprint import quick_model_fingerprint


def served_models(config: ServeConfig, settings: GeneratorSettings) -> list[ServedModel]:
    """Return the models to serve, the endpoint's own first, whose settings are settled and checked.

    Raises ValueError or OSError for an adapter that cannot be served; no weights are merged before all are looked at.
    """
    own = _own_name(config)
    target = quick_model_fingerprint(settings.models.target)
    for name, folder in config.serve.adapters.items():
        with _naming(name):
            base = adapter_base(folder)
            if quick_model_fingerprint(base) != target:
                raise ValueError(
                    f"the adapter in {folder!r} is one of {base!r}, and models.target is "
                    f"{config.generator.models.target!r}, another model; name an adapter of that one, or serve this "
                    "one by an endpoint of its own (models.target)"
                )
    models = [_model(config, settings, own, config.generator.models.target, None)]
    for name, folder in config.serve.adapters.items():
        with _naming(name):
            merged = replace(settings, models=replace(settings.models, target=folder_of(folder)))
            backend_of(merged).check_models()
        models.append(_model(config, merged, name, folder, own))
    return models


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let a ValueError of the block name the adapter that it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"serve.adapters.{name}: {error}") from error


def check_adapters(config: ServeConfig) -> None:
    """Raise ValueError for adapters that cannot be served, as far as no model is needed to know."""
    adapters, settings = config.serve.adapters, config.generator
    if not adapters:
        return
    taken = {_own_name(config): "the name of models.target", **dict.fromkeys(config.serve.service.aliases, "an alias")}
    for name in adapters:
        if name in taken:
            raise ValueError(f"serve.adapters names {name!r}, which is {taken[name]} already; choose another name")
    if settings.has_draft_actors:
        raise ValueError(
            "serve.adapters and placement 'split' do not go together: the draft actors of an endpoint draft for one "
            "target; leave out one of them, or serve each adapter by an endpoint of its own (models.target)"
        )
    if why := backend_of(settings).why_no_adapters:
        raise ValueError(why)


def _model(config: ServeConfig, settings: GeneratorSettings, name: str, target: str, parent: str | None) -> ServedModel:
    """Return a model with what is said of it; only the endpoint's own has aliases."""
    backend = backend_of(settings)
    engine, chat = backend.identity(quick_model_fingerprint), chat_identity(settings.chat, load_codec(settings))
    service: ServiceSettings = replace(
        config.serve.service,
        model=name,
        aliases=() if parent is not None else config.serve.service.aliases,
        fingerprint=_fingerprint(engine | chat),
        exact=backend.exactness,
        warning=backend.lossy,
        parent=parent,
    )
    return ServedModel(settings=settings, service=service, fingerprint=_fingerprint(engine), target=target)


def _own_name(config: ServeConfig) -> str:
    """Return the name of the endpoint's own model: as configured, as on the hub, or as its folder."""
    target = config.generator.models.target
    folder = Path(target)
    return config.serve.service.model or (folder.absolute().name if folder.exists() else target)


def _fingerprint(identity: Mapping[str, Any]) -> str:
    return f"fp_{hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]}"
