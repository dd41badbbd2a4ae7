"""Ray Data: work units through an autoscaling pool of actors. The only file that says ray.data.

Of Ray Data we use the streaming executor and the actor pool. Its own writer, checkpoints and error skipping
are not used: each can lose or repeat rows (docs/adr/0004). What travels are unit descriptors one way and
receipts the other; generations never enter the object store.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.data.exceptions import ExecutionTimeoutError

from pipeline.receipt import Receipt
from pipeline.units import WorkUnit

# How often Ray may repeat a call whose actor died: more often than the run's own ledger allows deaths over a unit, so
# that the ledger decides. Ray Data's default is for ever. Actors that died are replaced without limit.
MAX_TASK_RETRIES = 32

# What `stream_units` raises when no unit was committed for its `no_progress_timeout_s`.
NoProgress = ExecutionTimeoutError


@dataclass(frozen=True, kw_only=True)
class ActorPool:
    """How many actors, what each holds, and how many calls it works on at once."""

    min_actors: int = 1
    max_actors: int = 1
    num_cpus: float = 1.0  # logical CPUs an actor holds; Ray gives it as many threads
    num_gpus: float = 0.0
    calls_in_flight: int = 2  # units (or batches) an actor works on at once: more than one leaves no gap between them

    def __post_init__(self) -> None:
        if not 1 <= self.min_actors <= self.max_actors:
            raise ValueError(
                "actors.min_actors and max_actors must satisfy 1 <= min <= max, "
                f"got {self.min_actors} and {self.max_actors}"
            )
        if self.calls_in_flight < 1:
            raise ValueError(f"actors.units_in_flight must be at least 1, got {self.calls_in_flight}")

    def _map_arguments(self) -> dict[str, Any]:
        strategy = ActorPoolStrategy(
            min_size=self.min_actors,
            max_size=self.max_actors,
            max_concurrent_calls_per_actor=self.calls_in_flight,
            # The pool grows while tasks in flight exceed 1.75 times the concurrent calls.
            max_tasks_in_flight_per_actor=2 * self.calls_in_flight,
        )
        # Ray Data adds a CPU to a GPU actor unless told not to; giving both is what it warns about.
        resources = {"num_gpus": self.num_gpus} if self.num_gpus else {"num_cpus": self.num_cpus}
        return {"compute": strategy, "batch_format": "pyarrow", "max_task_retries": MAX_TASK_RETRIES, **resources}


class UnitError(RuntimeError):
    """A worker could not do its unit. The message is the worker's own; nothing of the unit is committed."""


def stream_units(
    units: Iterable[WorkUnit],
    worker: type,
    worker_arguments: Mapping[str, Any],
    pool: ActorPool,
    no_progress_timeout_s: float,
) -> Iterator[Receipt]:
    """The receipts of the units as they are committed.

    `worker` takes tables with a column "unit" of JSON texts and returns, row for row, tables with the columns "receipt"
    (JSON text) and "failure" (a message): a failure that travels as data keeps its message, which Ray Data's own
    wrapping loses. A unit with neither was not begun, since the run is stopping. Raises UnitError at the first failure,
    RayError if actors die again and again.
    """
    quiet_ray_data(no_progress_timeout_s)
    descriptors = [{"unit": json.dumps(unit.to_dict())} for unit in units]
    if not descriptors:
        return
    dataset = ray.data.from_items(descriptors, override_num_blocks=len(descriptors)).map_batches(
        worker, batch_size=1, fn_constructor_kwargs=dict(worker_arguments), **pool._map_arguments()
    )
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in batch.to_pylist():
            if row["failure"] is not None:
                raise UnitError(row["failure"])
            if row["receipt"] is not None:
                yield Receipt.from_dict(json.loads(row["receipt"]))


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
