"""The models of an endpoint: its own, and its adapters, each merged into a model and then checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.identity import vllm_identity
from actors.settings import GeneratorSettings
from actors.workers.loading import load_codec
from decoding.checkpoint.supported import adapter_base
from endpoint.service.served_model import ServedModel
from endpoint.service.settings import ServiceSettings
from jobs.config.serve import ServeConfig
from jobs.driver.backend import exactness, lossy
from jobs.driver.plan import check_models, with_target
from pipeline.run.fingerprint import quick_model_fingerprint, text_fingerprint, tokenizer_fingerprint


def served_models(config: ServeConfig, settings: GeneratorSettings) -> list[ServedModel]:
    """Return the models to serve, the endpoint's own first, whose settings are settled and checked.

    Raises ValueError or OSError for an adapter that cannot be served; no weights are merged before all are looked at.
    """
    own = _own_name(config)
    check_adapters(config)
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
            merged = with_target(settings, folder)
            check_models(merged)
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
    if settings.placement == "split":
        raise ValueError(
            "serve.adapters and placement 'split' do not go together: the draft actors of an endpoint draft for one "
            "target; leave out one of them, or serve each adapter by an endpoint of its own (models.target)"
        )
    if settings.engine.backend == "vllm":
        raise ValueError(
            "serve.adapters is for Dray's own engine; with engine.backend 'vllm' an endpoint serves one adapter, by "
            "engine.vllm.lora"
        )


def _model(config: ServeConfig, settings: GeneratorSettings, name: str, target: str, parent: str | None) -> ServedModel:
    """Return a model with what is said of it; only the endpoint's own has aliases."""
    template = load_codec(settings).templates.text
    service: ServiceSettings = replace(
        config.serve.service,
        model=name,
        aliases=() if parent is not None else config.serve.service.aliases,
        fingerprint=_fingerprint((*_engine_parts(settings), *_chat_parts(settings, template))),
        exact=exactness(settings),
        warning=lossy(settings),
        parent=parent,
    )
    fingerprint = _fingerprint(_engine_parts(settings))
    return ServedModel(settings=settings, service=service, fingerprint=fingerprint, target=target)


def _own_name(config: ServeConfig) -> str:
    """Return the name of the endpoint's own model: as configured, as on the hub, or as its folder."""
    target = config.generator.models.target
    folder = Path(target)
    return config.serve.service.model or (folder.absolute().name if folder.exists() else target)


def _engine_parts(settings: GeneratorSettings) -> tuple[Any, ...]:
    """Return everything that decides which tokens an engine writes after a prompt, with a given seed."""
    models, engine = settings.models, settings.engine
    tokenizer = tokenizer_fingerprint(models.tokenizer or models.target)
    target = quick_model_fingerprint(models.target)
    parts = (target, tokenizer, models.dtype, engine.verification, engine.max_model_len)
    if engine.is_repeatable:
        return parts  # the text does not depend on the drafts
    draft = models.draft and quick_model_fingerprint(models.draft)
    drafting = draft, engine.pick_drafter(models.draft), engine.num_speculative_tokens, engine.draft_length
    return *parts, *drafting, vllm_identity(settings) if engine.backend == "vllm" else None


def _chat_parts(settings: GeneratorSettings, chat_template: str) -> tuple[Any, ...]:
    """Return everything that decides which prompt a chat becomes."""
    chat = settings.chat
    formats = [name for name in (chat.tool_calls, chat.reasoning, chat.moment or "auto") if name != "auto"]
    return text_fingerprint(chat_template), chat.system_prompt, sorted(chat.template_kwargs.items()), *formats


def _fingerprint(parts: tuple[Any, ...]) -> str:
    return f"fp_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
