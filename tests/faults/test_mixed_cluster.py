"""Nodes of several kinds: a pool stays on those that its configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.faults.cluster import RayCluster
from tests.faults.runs import NewRun

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # what the pool asks for, and the node that has it
    "label_selector": ('{"pool": "fast"}', {"labels": {"pool": "fast"}}),
    "accelerator_type": ("T4", {"resources": {"accelerator_type:T4": 1}}),
    "resources": ('{"licence": 1}', {"resources": {"licence": 2}}),
}


class Kind(NamedTuple):
    """A flag that asks for nodes of a kind, and the one that is."""

    flag: str
    node: str


@pytest.fixture
def kind(request: pytest.FixtureRequest, cluster: RayCluster) -> Iterator[Kind]:
    """A node of its own kind, beside the usual ones."""
    name = request.param
    value, node = KINDS[name]
    node_id = cluster.add_node(**node)
    yield Kind(f"--actors.{name}={value}", node_id)
    cluster.kill_node(node_id)


@pytest.mark.parametrize("kind", list(KINDS), indirect=True)
def test_units_run_only_on_nodes_of_the_kind_that_is_asked_for(
    kind: Kind, new_run: NewRun, say: Callable[[str], None]
) -> None:
    run = new_run(kind.flag)
    run.start(pause_s=0.1).wait(0)
    assert {entry.node for entry in run.diary.entries()} == {kind.node}
    say(run.prove_nothing_lost(0))
