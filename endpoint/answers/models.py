"""GET /v1/models: the one model that is served, under each of its names."""

from __future__ import annotations

from typing import Any

from actors.engine.requests import EngineFacts
from endpoint.service.service import ServiceSettings, unknown_model


def list_models(settings: ServiceSettings, facts: EngineFacts) -> dict[str, Any]:
    """All names."""
    names = (settings.model, *settings.aliases)
    return {"object": "list", "data": [_card(settings, facts, name) for name in names]}


def one_model(settings: ServiceSettings, facts: EngineFacts, name: str) -> dict[str, Any]:
    """The model of this name, which may hold slashes. Raises ApiError."""
    if name not in (settings.model, *settings.aliases):
        raise unknown_model(name)
    return _card(settings, facts, name)


def _card(settings: ServiceSettings, facts: EngineFacts, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": settings.created,
        "owned_by": settings.owned_by,
        "root": settings.model,
        "max_model_len": facts.max_model_len,
    }
