"""What an endpoint serves: its models, what is said of each, and how many processes it has."""

import hashlib
import re
import time
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from actors.settings import GeneratorSettings
from pipeline.limits import check_numbers
from pipeline.streaming.pool import ActorResources

SpecDecodeMetrics = Literal["summary", "detailed"]

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
    per_request_spec_decode_metrics: SpecDecodeMetrics = "summary"
    """What an answer says of its drafts: counts, or `detailed`, with the tokens drafted and accepted in each step."""
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


@dataclass(frozen=True, kw_only=True)
class DeploymentSettings(ActorResources):
    """How many processes, what each holds, and how they come and go."""

    section: ClassVar[str] = "serve"
    actor: ClassVar[str] = "engine"

    min_replicas: int = 1
    """Engines to keep."""
    max_replicas: int = 1
    """Engines to grow to under load."""
    target_ongoing_requests: float | None = None
    """Requests of an engine beyond which engines are added; unless given, as many as it has slots."""
    upscale_delay_s: float = 10.0
    """Seconds of load before engines are added."""
    downscale_delay_s: float = 300.0
    """Seconds without load before engines are taken away."""
    num_ingresses: int = 2
    """Processes that speak HTTP and text in front of the engines; with two, one that is lost is not missed."""
    drain_timeout_s: float = 120.0
    """Seconds that requests in flight get when an engine is to go."""
    max_surge_percent: float = 100.0
    """Engines, in percent of all, that a rolling update starts before it ends old ones."""
    health_period_s: float = 10.0
    """Seconds between looks at an engine's health."""
    health_timeout_s: float = 30.0
    """Seconds for such a look; it writes a token if the engine wrote none lately."""

    def __post_init__(self) -> None:
        """Check what Serve would only refuse later, or not at all."""
        super().__post_init__()
        check_numbers(self, "serve.", at_least_1=("num_ingresses",), above_0=("num_cpus", "target_ongoing_requests"))
        check_numbers(self, "serve.", not_negative=("upscale_delay_s", "downscale_delay_s", "drain_timeout_s"))
        check_numbers(self, "serve.", seconds=("health_period_s", "health_timeout_s"))
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                "serve.min_replicas and max_replicas must satisfy 1 <= min <= max, "
                f"got {self.min_replicas} and {self.max_replicas}"
            )
        if not 0 < self.max_surge_percent <= 100:
            raise ValueError(
                f"serve.max_surge_percent must be above 0 and at most 100, got {self.max_surge_percent}; "
                "at 0 a rolling update would end old replicas before new ones are there"
            )
