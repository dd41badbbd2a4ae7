"""In any order of repeats, losses and returns each unit is committed once; and ten faults that break this are found."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from actors.units.hand_outs import HandOuts
from actors.units.ledger import Ledger
from actors.units.places import PlaceTable
from actors.units.unit_record import UnitRecord
from tests.actors.units.cluster_machine import ClusterMachine

_QUICK = settings(max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))


def test_each_unit_is_committed_once_whatever_is_repeated_lost_or_comes_back():
    run_state_machine_as_test(ClusterMachine, settings=_QUICK)


def forget_requests(self: Ledger, request: Any, answer: Callable[[], Any]) -> Any:
    return answer()


def pop_each_time(self: UnitRecord, number: int) -> Any:
    return _next_group(self, self.num_groups)


def begin_each_time(self: Ledger, unit_id: int, *arguments: Any) -> Any:
    return _begin(self, unit_id, *arguments[:-1])


def count_lost_nodes(self: Ledger, *arguments: Any) -> Any:
    self._is_node_alive = lambda node: True
    return _take_over(self, *arguments)


def drain_in_name(self: Ledger, nodes: Any) -> None:
    self._places.drain(nodes)


_next_group, _begin = UnitRecord.next_group, Ledger.begin
_take_over = Ledger._take_over
_FAULTS: dict[str, tuple[type, str, Any]] = {
    "a call of the feed is popped again when it is repeated": (HandOuts, "_once", forget_requests),
    "a group of rows is popped again when it is asked for again": (UnitRecord, "next_group", pop_each_time),
    "a repeated begin counts as another attempt": (Ledger, "begin", begin_each_time),
    "a late commit is let through": (Ledger, "holds", lambda self, unit_id, process: True),
    "a place that failed keeps its unit": (Ledger, "_take_back", lambda self, *_, **__: None),
    "a unit that was given back is not handed out": (HandOuts, "_give_back", lambda self, *_: None),
    "a lost node counts as a death over its units": (Ledger, "_take_over", count_lost_nodes),
    "a drained node keeps its units": (Ledger, "drain", drain_in_name),
    "neighbours of a row that kills are given up with it": (
        UnitRecord,
        "condemned",
        property(lambda self: (0, 1, 2, 3) if self.died_alone else ()),
    ),
    "a place that rests never gets a trial": (PlaceTable, "may_begin", lambda self, process: not self.num_failed()),
}


@pytest.mark.parametrize("fault", _FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    owner, name, planted = _FAULTS[fault]
    monkeypatch.setattr(owner, name, planted)
    quick = settings(_QUICK, max_examples=400, phases=[Phase.generate], derandomize=True)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ClusterMachine, settings=quick)
