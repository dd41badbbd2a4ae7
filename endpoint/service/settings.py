"""ServiceSettings: what the application says about its model, and how much one request may ask for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pipeline.limits import check_numbers

MAX_NAME = 512  # characters of a model's name


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
