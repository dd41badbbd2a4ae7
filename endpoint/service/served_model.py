"""ServedModel: one of the models that an endpoint serves, with what its engines run and what is said of it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from actors.settings import GeneratorSettings
from endpoint.service.settings import ServiceSettings

_MAX_SLUG = 40  # characters; Serve makes names of files of them


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model that an endpoint serves. The first one is the endpoint's own, and the others are adapters of it."""

    settings: GeneratorSettings  # of its engines
    service: ServiceSettings
    fingerprint: str = ""  # of its engines; only those may write its texts
    target: str = ""  # as it is configured: an adapter's folder, whose merged model is settings.models.target

    @property
    def name(self) -> str:
        """The name that answers and metrics give it."""
        return self.service.names[0]

    @property
    def adapter(self) -> str | None:
        """The name again if it is an adapter; None for the endpoint's own model."""
        return None if self.service.parent is None else self.name


def deployment_name(base: str, adapter: str | None) -> str:
    """Return the name of the deployment that writes for an adapter, or of the model's own: `base`.

    Names of models may have any characters and any length, and names of deployments may not. A name that has to be
    changed gets a digest, so that no two adapters share a deployment.
    """
    if adapter is None:
        return base
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", adapter)[:_MAX_SLUG]
    if slug != adapter:
        slug += f"-{hashlib.sha256(adapter.encode()).hexdigest()[:12]}"
    return f"{base}-{slug}"
