"""ServedModel: one of the models that an endpoint serves, with what its engines run and what is said of it."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field

from actors.settings import GeneratorSettings
from pipeline.limits import check_numbers

MAX_NAME = 512  # characters of a model's name
_MAX_SLUG = 40  # characters; Serve makes names of files of them


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """What the application says about its model, and how much one request may ask for."""

    model: str | None = None
    """The model's name in requests, which may hold slashes; that of the target's folder unless given."""
    aliases: tuple[str, ...] = ()
    """Other names of the model in requests."""
    max_choices: int = 128
    """Samples that one request may ask for, over all of its prompts."""
    request_timeout_s: float = 600.0
    """Seconds from a request's arrival to its last token, waiting included; then 504."""
    fingerprint: str = ""  # of model and configuration: equal ones write equal texts
    exact: str = ""  # what may be said of the texts, as `exact` in run.json
    warning: str = ""  # of texts that are not the target's; shown with the model
    parent: str | None = None  # the model of which this one is an adapter
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def __post_init__(self) -> None:
        for name in self.names:
            if not 1 <= len(name) <= MAX_NAME:
                field = "model" if name == self.model else "aliases"
                raise ValueError(f"serve.{field}: expected a name of 1 to {MAX_NAME} characters, got {name!r}")
        check_numbers(self, "serve.", at_least_1=("max_choices",), seconds=("request_timeout_s",))

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a request may call the model, its own first."""
        return self.aliases if self.model is None else (self.model, *self.aliases)


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
