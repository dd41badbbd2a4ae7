"""Answers about the model itself: its names (GET /v1/models) and its tokenizer (POST /tokenize, /detokenize)."""

from __future__ import annotations

from typing import Any

from actors.engine.deadline import Deadline
from actors.engine.requests import EngineFacts
from endpoint.requests.tokens import DetokenizeRequest, TokenizeRequest
from endpoint.service.service import Service, ServiceSettings


def list_models(settings: ServiceSettings, facts: EngineFacts) -> dict[str, Any]:
    """Return the one model that is served, under each of its names."""
    return {"object": "list", "data": [one_model(settings, facts, name) for name in settings.names]}


def one_model(settings: ServiceSettings, facts: EngineFacts, name: str) -> dict[str, Any]:
    """Return the one model that is served, under one of its names."""
    return {
        "id": name,
        "object": "model",
        "created": settings.created,
        "owned_by": "dray",
        "root": settings.model,
        "max_model_len": facts.max_model_len,
    }


async def tokenize(service: Service, request: TokenizeRequest, deadline: Deadline) -> dict[str, Any]:
    """Return the token ids of a prompt, or of messages through the chat template. Raises ApiError."""
    service.check_model(request.model)
    param, text = request.text
    token_ids = (await service.encode(param, text, deadline)).token_ids
    facts = await service.facts(deadline)
    return {"count": len(token_ids), "max_model_len": facts.max_model_len, "tokens": list(token_ids)}


async def detokenize(service: Service, request: DetokenizeRequest, deadline: Deadline) -> dict[str, Any]:
    """Return the text of token ids without special tokens. Raises ApiError."""
    service.check_model(request.model)
    return {"prompt": await service.decode("tokens", request.tokens, deadline)}
