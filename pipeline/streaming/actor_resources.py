"""ActorResources: what an actor holds while it lives, and on which nodes it may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

_OWN_FIELDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class ActorResources:
    """What each actor of a kind holds. Subclasses are the kinds; a ValueError names the field with their section."""

    section: ClassVar[str] = "actors"  # of the configuration
    actor: ClassVar[str] = "actor"  # what such an actor is called in that section

    num_cpus: float = 1.0
    """Logical CPUs that each {kind.actor} holds; its threads on CPU."""
    num_gpus: float = 0.0
    """GPUs that each {kind.actor} holds; 1 when the device is cuda and this is 0."""
    memory: int | None = None
    """Memory that each {kind.actor} holds, such as 80GiB."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources that each {kind.actor} holds, by their names."""
    accelerator_type: str | None = None
    """Kind of the GPUs that each {kind.actor} holds, as Ray names it, such as H100."""
    label_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes on which each {kind.actor} may run."""

    def __post_init__(self) -> None:
        """Raise ValueError for what Ray would let no actor hold."""
        for name in ("num_cpus", "num_gpus"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.section}.{name} must not be negative, got {getattr(self, name)}")
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ValueError(
                f"{self.section}.num_gpus must be a whole number, or a share of one GPU, got {self.num_gpus}"
            )
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"{self.section}.memory must be a positive number of bytes, got {self.memory}")
        for name, amount in self.resources.items():
            if name in _OWN_FIELDS:
                own = f"{self.section}.{_OWN_FIELDS[name]}"
                raise ValueError(f"{self.section}.resources names {name!r}; that is what {own} is for")
            if amount <= 0 or (amount > 1 and amount != int(amount)):
                raise ValueError(
                    f"{self.section}.resources: {name!r} must be a whole number, or a share between 0 and 1, "
                    f"got {amount}"
                )

    @property
    def demand(self) -> dict[str, float]:
        """What the scheduler sets aside for an actor, by the names under which a node lists its resources."""
        demand = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0)}
        demand |= {} if self.accelerator_type is None else {f"accelerator_type:{self.accelerator_type}": 0.001}
        return {name: amount for name, amount in (demand | dict(self.resources)).items() if amount}

    @property
    def resource_options(self) -> dict[str, Any]:
        """What an actor holds, as options of Ray; an actor in a placement group has the labels of its bundle."""
        optional = {"memory": self.memory, "resources": dict(self.resources), "accelerator_type": self.accelerator_type}
        required = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        return required | {name: value for name, value in optional.items() if value}

    @property
    def actor_options(self) -> dict[str, Any]:
        """What an actor holds and where it may run, as options of Ray."""
        labels = {"label_selector": dict(self.label_selector)} if self.label_selector else {}
        return self.resource_options | labels
