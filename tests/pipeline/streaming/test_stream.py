"""Units stream through Ray Data, one in a call, and each is counted once, whichever actor commits it."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import ray
from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from pipeline.counts import Counts
from pipeline.ray_internals import block_statistics_cleaner
from pipeline.run.commit import Receipt
from pipeline.streaming import stream as dataset
from pipeline.streaming.calls import UnitCall, UnitError, packed, unpacked
from pipeline.streaming.pool import ActorPool
from pipeline.streaming.stream import stream_units
from tests.jobs.runs import wait_until
from tests.pipeline.made_up import unit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


def a_worker(refused: int = -1) -> type:
    """A worker that does nothing, refuses one unit, and fails when it is called with two at once."""

    class Worker:
        def __call__(self, batch: pa.Table) -> pa.Table:
            if batch.num_rows != 1:
                return packed([UnitError(f"{batch.num_rows} units in a call")])
            (call,) = unpacked(batch)
            assert call.unit == unit(call.unit.unit_id)
            if call.unit.unit_id == refused:
                return packed([UnitError("this one is refused")])
            return packed([Receipt(call.unit.unit_id, Counts(num_rows=3), int(call.is_backup))])

    return Worker


def calls(ids: list[int], backups: tuple[int, ...] = ()) -> Callable[[], Iterator[UnitCall]]:
    def source() -> Iterator[UnitCall]:
        yield from (UnitCall(unit(unit_id), is_backup=True) for unit_id in backups)  # early: the end would cut them off
        yield from (UnitCall(unit(unit_id)) for unit_id in ids)

    return source


def stream(source: Any, num_units: int, worker: type, **pool: Any) -> list[Receipt]:
    return list(stream_units(source, num_units, worker, {}, ActorPool(**pool), 120.0))


def test_each_unit_is_a_call_and_has_one_receipt_also_where_it_was_done_twice(monkeypatch):
    remembered: list[list[int]] = []

    class Watching(block_statistics_cleaner()):  # type: ignore[misc]
        def on_execution_step(self, executor: Any) -> None:
            super().on_execution_step(executor)
            maps = [operator for operator in executor._topology if "Map" in type(operator).__name__]
            remembered.append([len(operator._output_blocks_stats) for operator in maps])

    monkeypatch.setattr(dataset, "block_statistics_cleaner", lambda: Watching)
    receipts = stream(calls(list(range(40)), backups=(3, 39, 0)), 40, a_worker(), max_actors=2)
    assert sorted(receipt.unit_id for receipt in receipts) == list(range(40))
    assert remembered, "nobody was there to forget"
    assert all(lengths == [0, 0] for lengths in remembered), "the driver grows with every unit"


def test_the_stream_ends_with_the_last_unit_although_more_is_on_its_way():
    def endless() -> Iterator[UnitCall]:
        while True:
            yield from (UnitCall(unit(unit_id)) for unit_id in range(3))

    assert len(stream(endless, 3, a_worker())) == 3


def test_a_stream_without_units_to_come_brings_those_that_are_done_again_and_ends_with_them():
    answers = iter([False, False, True])  # asked before the first unit, and after each
    given = calls([0, 1]), 0, a_worker(), {}, ActorPool(), 120.0
    assert [receipt.unit_id for receipt in stream_units(*given, lambda: next(answers))] == [0, 1]
    assert list(stream_units(*given)) == []


def test_actors_that_hold_every_cpu_do_not_keep_the_units_away() -> None:
    # What earlier commands of this very process left (Ray keeps an actor's placement group until the job ends).
    for group in map(bytes.fromhex, ray.util.placement_group_table()):
        ray.util.remove_placement_group(PlacementGroup(PlacementGroupID(group)))
    wait_until(lambda: ray.available_resources().get("CPU", 0) >= 6, 60)
    assert len(stream(calls([0, 1]), 2, a_worker(), num_cpus=6)) == 2


def test_a_failure_keeps_its_message():
    with pytest.raises(UnitError, match=r"^this one is refused$"):
        stream(calls(list(range(9))), 9, a_worker(refused=4))


def test_a_source_whose_process_dies_is_read_again_and_loses_nothing(tmp_path):
    def dying() -> Iterator[UnitCall]:
        for unit_id in range(20):
            if unit_id == 11 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                os._exit(9)
            yield UnitCall(unit(unit_id))

    assert sorted(receipt.unit_id for receipt in stream(dying, 20, a_worker())) == list(range(20))
    assert (tmp_path / "died").exists()


def test_actors_go_where_labels_and_resources_are():
    receipts = stream(
        calls([0, 1]),
        2,
        a_worker(),
        memory=1 << 20,
        resources={"node:__internal_head__": 0.001},
        label_selector={"ray.io/node-id": "elsewhere"},
        fallback_label_selectors=({"ray.io/node-id": ray.get_runtime_context().get_node_id()},),
    )
    assert len(receipts) == 2
