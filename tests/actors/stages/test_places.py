"""Places of stages are given back when the process that took them is gone; a target that finds none says so."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table

from actors.placement import StageSettings
from actors.stages import places as stage_places
from actors.stages.places import give_back_orphans, take_places
from jobs.driver.watches import watch_for_orphans, watching
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


def take_for_a_stranger() -> Any:
    """Take places for an actor that the cluster has forgotten, or never knew."""
    job = ray.get_runtime_context().get_job_id()
    name = f"dray-stages:{job}:{os.urandom(12).hex()}{job}:{'0' * 56}:{os.urandom(4).hex()}"
    return placement_group([{"CPU": 0.001}], name=name)


def is_given_back(places: Any) -> Callable[[], bool]:
    return lambda: placement_group_table(places)["state"] == "REMOVED"


def test_the_driver_gives_back_places_of_actors_that_are_not_known_any_more():
    own = take_places(StageSettings(count=2, num_cpus=0.1))
    orphan = take_for_a_stranger()
    with watching(watch_for_orphans, 0.01):
        wait_until(is_given_back(orphan))
    assert not is_given_back(own)()
    ray.util.remove_placement_group(own)


def test_two_may_give_back_the_same_places_at_once(monkeypatch):
    orphan, find = take_for_a_stranger(), stage_places.get_placement_group

    def too_late(name: str) -> Any:
        ray.util.remove_placement_group(find(name))
        raise ValueError(f"Failed to look up placement group with name: {name}")

    monkeypatch.setattr(stage_places, "get_placement_group", too_late)
    give_back_orphans()
    wait_until(is_given_back(orphan))


def test_a_target_that_finds_no_room_says_what_it_needs_and_goes_on_waiting(monkeypatch, caplog):
    class EnoughError(Exception):
        pass

    monkeypatch.setattr(stage_places, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(stage_places, "give_back_orphans", Mock(side_effect=[None, None, EnoughError]))
    with pytest.raises(EnoughError):
        take_places(StageSettings(count=2, num_cpus=10_000))
    assert caplog.text.count("waiting for room for stages") == 1
    assert "10000 CPU" in caplog.text
    (group,) = [group for group in placement_group_table().values() if group["bundles"][0].get("CPU") == 10_000]
    ray.util.remove_placement_group(ray.util.get_placement_group(group["name"]))
