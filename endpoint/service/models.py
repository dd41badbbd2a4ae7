"""Models: the services of one endpoint by the names that requests give them."""

from __future__ import annotations

import asyncio

from actors.engine.requests import EngineFacts
from endpoint.http.errors import ApiError
from endpoint.service.service import Service
from pipeline.errors import shown_name

_FACTS_S = 5.0  # for the engines of one of several models to say what takes them no time


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

    async def facts(self) -> list[tuple[str, Service, EngineFacts | None]]:
        """Return each name with its service and what its engines say: None if they say nothing, and another's do.

        Raises what a backend raises if no engine of any model answers.
        """
        asked = (self._facts(service) for service in self.services)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        facts = [None if isinstance(each, BaseException) else each for each in answers]
        if not any(facts):
            return [(name, service, await service.backend.facts()) for name, service in self.by_name.items()]
        by_service = dict(zip(map(id, self.services), facts, strict=True))
        return [(name, service, by_service[id(service)]) for name, service in self.by_name.items()]

    async def _facts(self, service: Service) -> EngineFacts:
        """Return what a service's engines say, in a short time where there are other models to speak of."""
        async with asyncio.timeout(_FACTS_S if len(self.services) > 1 else None):
            return await service.backend.facts()

    async def check_health(self) -> None:
        """Check an engine of each model. Raises what is wrong with one of them."""
        await asyncio.gather(*(service.backend.check_health() for service in self.services))
