"""Ray Data: work units through an autoscaling pool of actors. The only file that says ray.data.

Of Ray Data we use the streaming executor and the actor pool. Its own writer, checkpoints and error skipping
are not used: each can lose or repeat rows (docs/adr/0004). What travels are unit descriptors one way and
receipts the other; generations never enter the object store.

The descriptors come from one read task beside the driver, a block for each, as fast as its iterator yields them: Ray
Data's own backpressure counts bytes, which a hundred thousand descriptors hardly have (docs/adr/0014).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.exceptions import ExecutionTimeoutError

from pipeline.id_set import IdSet
from pipeline.inputs.units import WorkUnit
from pipeline.ray_internals import block_statistics_cleaner
from pipeline.run.commit import Receipt
from pipeline.schema import MANIFEST

# How often Ray may repeat a call whose actor died: more often than the run's own ledger allows deaths over a unit, so
# that the ledger decides. Ray Data's default is for ever. Actors that died are replaced without limit.
MAX_TASK_RETRIES = 32
_CALLS = MANIFEST.append(pa.field("is_backup", pa.bool_(), nullable=False))
_OUTCOMES = pa.schema([("receipt", pa.string()), ("failure", pa.string())])
_OWN_FIELDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}

# What `stream_units` raises when no unit was committed for its `no_progress_timeout_s`.
NoProgress = ExecutionTimeoutError


@dataclass(frozen=True, kw_only=True)
class ActorPool:
    """How many actors, what each holds and on which nodes, and how many calls it works on at once.

    `initial_actors` are asked for at once and kept until the last unit is handed out, also while the cluster has no
    room for them: its autoscaler sees them all. Beyond them Ray Data adds actors as the cluster grows,
    up to `max_actors`.
    """

    min_actors: int = 1
    max_actors: int = 1
    initial_actors: int | None = None  # None: min_actors
    num_cpus: float = 1.0  # logical CPUs an actor holds; Ray gives it as many threads
    num_gpus: float = 0.0
    memory: int | None = None  # bytes an actor holds
    resources: Mapping[str, float] = field(default_factory=dict)  # custom resources an actor holds
    accelerator_type: str | None = None  # a name of ray.util.accelerators, such as H100
    label_selector: Mapping[str, str] = field(default_factory=dict)  # what a node's labels must be
    fallback_label_selectors: tuple[Mapping[str, str], ...] = ()  # what else they may be, in order of preference
    units_in_flight: int = 2  # units (or batches) an actor works on at once: more than one leaves no gap between them

    def __post_init__(self) -> None:
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
        if self.units_in_flight < 1:
            raise ValueError(f"actors.units_in_flight must be at least 1, got {self.units_in_flight}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"actors.memory must be a positive number of bytes, got {self.memory}")
        for name, amount in self.resources.items():
            if name in _OWN_FIELDS:
                raise ValueError(f"actors.resources names {name!r}; that is what actors.{_OWN_FIELDS[name]} is for")
            if amount <= 0 or (amount > 1 and amount != int(amount)):
                raise ValueError(
                    f"actors.resources: {name!r} must be a whole number, or a share between 0 and 1, got {amount}"
                )
        if self.fallback_label_selectors and not self.label_selector:
            raise ValueError("actors.fallback_label_selectors come after actors.label_selector; set that one first")
        if not all(self.fallback_label_selectors):
            raise ValueError("actors.fallback_label_selectors: an empty selector fits every node; name a label")

    @property
    def num_at_once(self) -> int:
        """Actors that are asked for at the start."""
        return self.initial_actors or self.min_actors

    @property
    def demand(self) -> dict[str, float]:
        """What the scheduler sets aside for an actor, by the names under which a node lists its resources."""
        demand = {"CPU": 1.0, "GPU": self.num_gpus} if self.num_gpus else {"CPU": self.num_cpus}
        demand |= {} if self.memory is None else {"memory": float(self.memory)}
        demand |= {} if self.accelerator_type is None else {f"accelerator_type:{self.accelerator_type}": 0.001}
        return demand | dict(self.resources)

    def _map_arguments(self) -> dict[str, Any]:
        strategy = ActorPoolStrategy(
            # Ray Data takes back what a pool has above its minimum and the cluster has no room for yet, ten seconds
            # after asking for it, so an initial size only holds as a minimum. At the end it goes below any minimum.
            min_size=self.num_at_once,
            max_size=self.max_actors,
            max_concurrent_calls_per_actor=self.units_in_flight,
            # The pool grows while tasks in flight exceed 1.75 times the concurrent calls.
            max_tasks_in_flight_per_actor=2 * self.units_in_flight,
        )
        # Ray Data adds a CPU to a GPU actor unless told not to; giving both is what it warns about.
        resources: dict[str, Any] = {"num_gpus": self.num_gpus} if self.num_gpus else {"num_cpus": self.num_cpus}
        optional = {
            "memory": self.memory and int(self.memory),
            "resources": dict(self.resources),
            "accelerator_type": self.accelerator_type,
            "label_selector": dict(self.label_selector),
            "fallback_strategy": [{"label_selector": dict(labels)} for labels in self.fallback_label_selectors],
        }
        resources |= {name: value for name, value in optional.items() if value}
        return {"compute": strategy, "batch_format": "pyarrow", "max_task_retries": MAX_TASK_RETRIES, **resources}


@dataclass(frozen=True)
class UnitCall:
    """A unit on its way to an actor: for the first time, or as a backup for an idle process."""

    unit: WorkUnit
    is_backup: bool = False


class UnitError(RuntimeError):
    """A worker could not do its unit. The message is the worker's own; nothing of the unit is committed."""


def calls_in(table: pa.Table) -> list[UnitCall]:
    """Return the calls that a worker was called with."""
    return [UnitCall(is_backup=row.pop("is_backup"), unit=WorkUnit.from_dict(row)) for row in table.to_pylist()]


def outcomes_table(outcomes: Iterable[Receipt | UnitError | None]) -> pa.Table:
    """Return what a worker answers, one row for each call.

    None is a unit that was not begun: the run is stopping, or a backup is no longer wanted. A failure travels as data
    because Ray Data would wrap an exception beyond reading.
    """
    rows = [
        {"failure": str(outcome)}
        if isinstance(outcome, UnitError)
        else {"receipt": None if outcome is None else json.dumps(outcome.to_dict())}
        for outcome in outcomes
    ]
    return pa.Table.from_pylist(rows, schema=_OUTCOMES)


def stream_units(
    calls: Callable[[], Iterable[UnitCall]],
    num_units: int,
    worker: type,
    worker_arguments: Mapping[str, Any],
    pool: ActorPool,
    no_progress_timeout_s: float,
) -> Iterator[Receipt]:
    """Yield one receipt for each unit as it is committed, and end with the last, even if other processes still work.

    `calls` is called in a process of its own on the driver's node. If that process dies it is called again, and
    must yield the same units in the same order, up to the first backup.

    `worker` takes a table of calls (`calls_in`) and returns a table of their outcomes (`outcomes_table`).
    Raises UnitError at the first failure, RayError if actors die again and again.
    """
    quiet_ray_data(no_progress_timeout_s)
    if not num_units:
        return
    # Beside the driver, and without a CPU: an actor pool may hold them all.
    source = ray.data.read_datasource(_CallSource(calls), num_cpus=0, concurrency=1, override_num_blocks=1)
    source.context.target_max_block_size = 1  # bytes: a block never has a second row, which would be the same call
    source.context.custom_execution_callback_classes = [block_statistics_cleaner()]
    dataset = source.map_batches(
        worker, batch_size=1, fn_constructor_kwargs=dict(worker_arguments), **pool._map_arguments()
    )
    done = IdSet()
    batches = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    try:
        for batch in batches:
            for row in batch.to_pylist():
                if row["failure"] is not None:
                    raise UnitError(row["failure"])
                if row["receipt"] is None:
                    continue
                receipt = Receipt.from_dict(json.loads(row["receipt"]))
                if done.add(receipt.unit_id):
                    yield receipt
            if len(done) == num_units:
                return
    finally:
        batches.close()  # a generator: it shuts the executor down


def map_rows(
    dataset: Dataset, worker: type, worker_arguments: Mapping[str, Any], pool: ActorPool, rows_per_batch: int
) -> Dataset:
    """The dataset that `worker` makes of batches of `dataset`, as tables."""
    return dataset.map_batches(
        worker,
        batch_size=rows_per_batch,
        fn_constructor_kwargs=dict(worker_arguments),
        **pool._map_arguments(),
    )


def quiet_ray_data(no_progress_timeout_s: float) -> None:
    """Silence Ray Data's own bars and logs, which would fight with ours, and set when a stuck run fails."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = no_progress_timeout_s
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"ray\.data")
    warnings.filterwarnings("ignore", message=".*ray_remote_args.*")


class _CallSource(Datasource):  # type: ignore[misc]  # Ray has no types
    """Calls as rows, from a single read task."""

    def __init__(self, calls: Callable[[], Iterable[UnitCall]]) -> None:
        super().__init__()
        self._calls = calls

    def estimate_inmemory_data_size(self) -> None:
        """Not known."""

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """The one task."""
        calls = self._calls
        metadata = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(lambda: _blocks(calls), metadata)]

    @property
    def supports_distributed_reads(self) -> bool:
        """No: the task runs where the driver does, and dies with it alone."""
        return False


def _blocks(calls: Callable[[], Iterable[UnitCall]]) -> Iterator[pa.Table]:
    for call in calls():
        yield pa.Table.from_pylist([{**call.unit.to_dict(), "is_backup": call.is_backup}], schema=_CALLS)
