"""Nodes of several kinds: a pool stays on those that its configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs.config import ActorsSection
from tests.faults.cluster import RayCluster
from tests.faults.runs import NewRun


pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # what the pool asks for, and the node that has it
    "label_selector": ('{"pool": "fast"}', {"labels": {"pool": "fast"}}),
    "accelerator_type": ("T4", {"resources": {"accelerator_type:T4": 1}}),
    "resources": ('{"licence": 1}', {"resources": {"licence": 2}}),
}


@pytest.fixture
def only(request: pytest.FixtureRequest, cluster: RayCluster) -> Iterator[str]:
    """The id of a node of the kind that the test's pool asks for; no other one is."""
    node = cluster.add_node(**KINDS[request.getfixturevalue("name")][1])
    yield node
    cluster.kill_node(node)


@pytest.mark.parametrize("name", list(KINDS))
def test_units_run_only_on_nodes_of_the_kind_that_is_asked_for(
    name: str, only: str, new_run: NewRun, say: Callable[[str], None]
) -> None:
    if name not in ActorsSection.model_fields:
        pytest.skip(f"there is no actors.{name} yet")
    run = new_run(f"--actors.{name}={KINDS[name][0]}")
    run.start(pause_s=0.1).wait(0)
    assert {entry.node for entry in run.diary.entries()} == {only}
    say(run.prove_nothing_lost(0))
