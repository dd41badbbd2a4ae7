"""POST /tokenize and /detokenize: what the model reads of a text, and back."""

from __future__ import annotations

from typing import Any

from endpoint.requests.tokens import DetokenizeRequest, TokenizeRequest
from endpoint.service.service import Service


async def tokenize(service: Service, request: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a prompt, or of messages through the chat template. Raises ApiError."""
    service.check_model(request.model)
    if request.messages is not None:
        prompt = await service.encode_chat(request.rows())
    else:
        assert request.prompt is not None
        prompt = await service.encode("prompt", request.prompt)
    facts = await service.facts()
    return {"count": len(prompt.token_ids), "max_model_len": facts.max_model_len, "tokens": list(prompt.token_ids)}


async def detokenize(service: Service, request: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids, special tokens left out. Raises ApiError."""
    service.check_model(request.model)
    return {"prompt": await service.decode("tokens", request.tokens)}
