"""DeploymentSettings: how many processes an endpoint has, what each holds, and how they come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pipeline.limits import check_numbers
from pipeline.streaming.pool import ActorResources


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
