"""ActorResources and ActorPool: what an actor holds, on which nodes it may run, and how many Ray Data works with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipeline.limits import check_numbers

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
        check_numbers(self, f"{self.section}.", not_negative=("num_cpus", "num_gpus"))
        if self.num_gpus > 1 and not float(self.num_gpus).is_integer():
            raise ValueError(
                f"{self.section}.num_gpus must be a whole number, or a share of one GPU, got {self.num_gpus}"
            )
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"{self.section}.memory must be a positive number of bytes, got {self.memory}")
        for name, amount in self.resources.items():
            if name in _OWN_FIELDS:
                own = f"{self.section}.{_OWN_FIELDS[name]}"
                raise ValueError(f"{self.section}.resources names {name!r}; that is what {own} is for")
            if not amount > 0 or (amount > 1 and not float(amount).is_integer()):
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


# How often Ray may repeat a call whose actor died: more often than the run's own ledger allows deaths over a unit, so
# that the ledger decides. Ray Data's default is for ever. Actors that died are replaced without limit.
MAX_TASK_RETRIES = 32


@dataclass(frozen=True, kw_only=True)
class ActorPool(ActorResources):
    """How many actors, what each holds and on which nodes, and how many calls it works on at once.

    Beyond `initial_actors` Ray Data adds actors as the cluster grows, up to `max_actors`. The autoscaler of the
    cluster sees all that were asked for at once, also while there is no room for them.
    """

    min_actors: int = 1
    """Actors to keep while units wait."""
    max_actors: int = 1
    """Actors to grow to."""
    initial_actors: int | None = None
    """Actors to ask for at once, and to keep while units wait; min_actors unless given."""
    fallback_label_selectors: tuple[Mapping[str, str], ...] = ()
    """Labels of the nodes to use where no node has those of label_selector, in order of preference."""
    units_in_flight: int | None = None
    """Work units that an actor works on at once; unless given 2, and more where run.rows_per_unit is not given either
    and they are so small that all but one of them would not fill its slots."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_actors <= self.max_actors:
            raise ValueError(
                "actors.min_actors and max_actors must satisfy 1 <= min <= max, "
                f"got {self.min_actors} and {self.max_actors}"
            )
        if self.initial_actors is not None and not self.min_actors <= self.initial_actors <= self.max_actors:
            raise ValueError(
                f"actors.initial_actors must lie between min_actors {self.min_actors} and max_actors "
                f"{self.max_actors}, got {self.initial_actors}"
            )
        check_numbers(self, "actors.", at_least_1=("units_in_flight",), above_0=("num_cpus",))
        if self.fallback_label_selectors and not self.label_selector:
            raise ValueError("actors.fallback_label_selectors come after actors.label_selector; set that one first")
        if not all(self.fallback_label_selectors):
            raise ValueError("actors.fallback_label_selectors: an empty selector fits every node; name a label")

    @property
    def num_at_once(self) -> int:
        """Actors that are asked for at the start."""
        return self.initial_actors or self.min_actors

    @property
    def num_units_at_once(self) -> int:
        """Units that an actor works on at once; unless given 2, since a second one leaves no gap between them."""
        return self.units_in_flight or 2

    @property
    def demand(self) -> dict[str, float]:
        """What the scheduler sets aside for an actor: Ray Data adds one CPU to an actor that holds GPUs."""
        return super().demand | ({"CPU": 1.0} if self.num_gpus else {})

    @property
    def map_options(self) -> dict[str, Any]:
        """Options for `Dataset.map_batches`."""
        from ray.data import ActorPoolStrategy  # here, since Ray Data takes seconds, and --help reads pools, too

        strategy = ActorPoolStrategy(
            # Ray Data takes back what a pool has above its minimum and the cluster has no room for yet, ten seconds
            # after asking for it, so an initial size only holds as a minimum. At the end it goes below any minimum.
            min_size=self.num_at_once,
            max_size=self.max_actors,
            max_concurrent_calls_per_actor=self.num_units_at_once,
            # The pool grows while tasks in flight exceed 1.75 times the concurrent calls.
            max_tasks_in_flight_per_actor=2 * self.num_units_at_once,
        )
        options = self.actor_options
        del options["num_cpus" if self.num_gpus else "num_gpus"]  # Ray Data warns about an actor with both
        fallback = [{"label_selector": dict(labels)} for labels in self.fallback_label_selectors]
        options |= {"fallback_strategy": fallback} if fallback else {}
        return {"compute": strategy, "batch_format": "pyarrow", "max_task_retries": MAX_TASK_RETRIES, **options}
