"""Stream of work units through an autoscaling pool of actors, by Ray Data. Only this package imports ray.data.

Of Ray Data we use the streaming executor and the actor pool. Its own writer, checkpoints and error skipping
are not used: each can lose or repeat rows (docs/adr/0004). What travels are unit descriptors one way and
receipts the other; generations never enter the object store.

The descriptors come from one read task beside the driver, a block for each, as fast as its iterator yields them: Ray
Data's own backpressure counts bytes, which a hundred thousand descriptors hardly have (docs/adr/0014). Its other one
lets a read task have two blocks that were not fetched, which are ten units a second, however many actors wait for more.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ray.data
from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.exceptions import ExecutionTimeoutError

from pipeline.id_set import IdSet
from pipeline.ray_internals import block_statistics_cleaner
from pipeline.run.commit import Receipt
from pipeline.streaming.calls import NoProgressError, UnitCall, UnitError, packed, unpacked
from pipeline.streaming.pool import ActorPool


def stream_units(
    calls: Callable[[], Iterable[UnitCall]],
    num_units: int,
    worker: type,
    worker_arguments: Mapping[str, Any],
    pool: ActorPool,
    no_progress_timeout_s: float,
    has_ended: Callable[[], bool] = lambda: True,
) -> Iterator[Receipt]:
    """Yield one receipt for each unit as it is committed, and end with the last, even if other processes still work.

    With the last receipt it does not end before `has_ended`: units may be done again.

    `calls` is called in a process of its own on the driver's node. If that process dies it is called again, and
    must yield the same units in the same order, up to the first backup.

    `worker` takes a table of calls and returns one of their outcomes (`packed`): a receipt, a UnitError, or None for a
    unit that was not begun, because the run is stopping or a backup is no longer wanted. A failure travels as data,
    since Ray Data would wrap an exception beyond reading.
    Raises UnitError at the first failure, RayError if actors die again and again, NoProgressError when no unit was
    committed for `no_progress_timeout_s`.
    """
    quiet_ray_data(no_progress_timeout_s)
    if not num_units and has_ended():
        return
    # Beside the driver, and without a CPU: an actor pool may hold them all.
    options = {"num_cpus": 0, "_generator_backpressure_num_objects": -1}
    source = ray.data.read_datasource(_CallSource(calls), ray_remote_args=options, concurrency=1, override_num_blocks=1)
    source.context.target_max_block_size = 1  # bytes: a block never has a second row, which would be the same call
    source.context.custom_execution_callback_classes = [block_statistics_cleaner()]
    dataset = source.map_batches(worker, batch_size=1, fn_constructor_kwargs=dict(worker_arguments), **pool.map_options)
    done = IdSet()
    batches = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    try:
        for batch in batches:
            for outcome in unpacked(batch):
                if isinstance(outcome, UnitError):
                    raise outcome
                if outcome is not None and done.add(outcome.unit_id):
                    yield outcome
            if len(done) >= num_units and has_ended():
                return
    except ExecutionTimeoutError as error:
        raise NoProgressError(str(error)) from error
    finally:
        batches.close()  # a generator: it shuts the executor down


def quiet_ray_data(no_progress_timeout_s: float) -> None:
    """Set when a stuck run fails, and turn off Ray Data's own bars and logs, which would mix with ours."""
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
        """Return None: the size is not known."""

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Return the only task."""
        calls = self._calls
        metadata = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [ReadTask(lambda: (packed([call]) for call in calls()), metadata)]

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether the task may run on another node: no, it runs beside the driver and ends with it."""
        return False
