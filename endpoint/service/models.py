"""Models: the services of one endpoint by the names that requests give them."""

from __future__ import annotations

import asyncio

from actors.engine.deadline import Deadline
from actors.engine.requests import EngineFacts
from endpoint.http.errors import ApiError, shown_name
from endpoint.service.service import Service


class Models:
    """The models that an endpoint serves: its own, which answers requests that name none, and adapters of it."""

    def __init__(self, first: Service, *adapters: Service) -> None:
        """Find each service by the names in its settings, which differ."""
        self.services = (first, *adapters)
        self.by_name = {name: service for service in self.services for name in service.settings.names}

    @property
    def first(self) -> Service:
        """The service of the endpoint's own model."""
        return self.services[0]

    def of(self, name: str | None) -> Service:
        """Return the service that a request names; a request need not name one. Raises ApiError (404)."""
        if name is None:
            return self.first
        service = self.by_name.get(name)
        if service is None:
            names = ", ".join(f"'{shown_name(each, 128)}'" for each in self.by_name)
            message = f"The model '{shown_name(name, 128)}' does not exist. This server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return service

    async def facts(self, deadline: Deadline) -> list[tuple[str, Service, EngineFacts]]:
        """Return each name with its service and what its engines say. Raises ApiError."""
        facts = await asyncio.gather(*(service.facts(deadline) for service in self.services))
        by_service = dict(zip(map(id, self.services), facts, strict=True))
        return [(name, service, by_service[id(service)]) for name, service in self.by_name.items()]

    async def check_health(self) -> None:
        """Check an engine of each model. Raises what is wrong with one of them."""
        await asyncio.gather(*(service.backend.check_health() for service in self.services))
