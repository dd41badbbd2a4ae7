"""The roster shares, replaces and ends draft actors."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from actors.drafts.roster import DraftRoster
from actors.drafts.roster import _is_placed as is_placed
from actors.settings import DraftSettings, GeneratorSettings, ModelSettings
from pipeline.logs import LogSettings


class Stage:
    """A roster without processes: draft actors are names, and placement groups are lists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_generators: int = 1, **drafts: Any) -> None:
        self.now, self.killed, self.groups, self.removed, self.is_room = 0.0, [], [], [], True
        numbers = count(1)

        def start(options: dict[str, Any]) -> Any:
            return SimpleNamespace(_actor_id=bytes([next(numbers)]), options=options)

        def group(bundles: list[dict[str, float]], strategy: str, bundle_label_selector: Any = None) -> Any:
            made = SimpleNamespace(bundles=bundles, strategy=strategy, is_placed=self.is_room)
            self.groups.append(made)
            return made

        monkeypatch.setattr("actors.drafts.roster.set_up_logs", lambda *_, **__: None)
        monkeypatch.setattr("actors.drafts.roster.placement_group", group)
        monkeypatch.setattr("actors.drafts.roster.remove_placement_group", self.removed.append)
        monkeypatch.setattr("actors.drafts.roster._is_placed", lambda group: group.is_placed)
        monkeypatch.setattr("actors.drafts.roster.PlacementGroupSchedulingStrategy", lambda *place: place)
        monkeypatch.setattr("actors.drafts.roster.ray.kill", lambda handle: self.killed.append(name(handle)))
        settings = GeneratorSettings(
            models=ModelSettings(target="t", draft="d"), placement="split", drafts=DraftSettings(**drafts)
        )
        self.roster = DraftRoster(settings, "test", LogSettings(), num_generators, start, lambda: self.now)

    def ask(self, generator: str, index: int = 0, lost: str | None = None) -> str | None:
        handle = self.roster.draft_actor(generator, index, lost)
        return None if handle is None else name(handle)


def name(handle: Any) -> str:
    return str(handle._actor_id.hex())


def test_two_generators_share_a_draft_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, per_target=0.5)
    assert [stage.ask(generator) for generator in ("a", "b", "c", "a", "d")] == ["01", "01", "02", "01", "02"]


def test_one_generator_has_two_draft_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, per_target=2)
    assert [stage.ask("a", index) for index in (0, 1, 0)] == ["01", "02", "01"]
    assert stage.ask("b") == "03"


def test_a_lost_draft_actor_is_replaced_once_for_all_its_generators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, per_target=0.5)
    assert [stage.ask("a"), stage.ask("b")] == ["01", "01"]
    assert [stage.ask("a", lost="01"), stage.ask("b", lost="01"), stage.ask("b", lost="01")] == ["02", "02", "02"]
    assert stage.killed == ["01"]
    assert stage.roster.stats() == {"num_actors": 1, "num_lost": 1}
    assert len(stage.groups) == 1


def test_after_too_many_losses_no_draft_actor_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, most_reconnects=2)
    lost = stage.ask("a")
    for _ in range(2):
        lost = stage.ask("a", lost=lost)
    assert lost == "03"
    assert stage.ask("a", lost=lost) is None


def test_a_generator_that_gives_no_sign_of_life_leaves_its_draft_actor_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    for _ in range(7):
        stage.now += 10.0
        stage.roster.beat("b")
    assert stage.ask("c") == "01"
    assert stage.killed == []


def test_a_generator_that_was_silent_gets_its_draft_actor_back_while_it_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    assert stage.ask("a") == "01"
    for second in range(0, 300, 10):
        stage.now = float(second)
        stage.roster.beat("b")
        if second >= 90:
            stage.roster.beat("a")
    assert stage.killed == []
    assert stage.ask("c") == "02"


def test_a_generator_that_leaves_ends_only_draft_actors_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, per_target=0.5)
    assert [stage.ask(generator) for generator in "abc"] == ["01", "01", "02"]
    stage.roster.leave("a")
    stage.roster.leave("c")
    stage.roster.leave("never came")
    assert stage.killed == ["02"]
    assert stage.removed == stage.groups[1:]
    assert stage.ask("d") == "01"


def test_losses_of_more_than_ten_minutes_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, most_reconnects=2)
    lost = stage.ask("a")
    for _ in range(9):
        stage.now += 350.0
        lost = stage.ask("a", lost=lost)
    assert lost == "0a"
    assert stage.roster.stats()["num_lost"] == 9


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_draft_actors_that_are_placed_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real placement groups: right after two are placed together, `wait(0)` may still return False."""
    stage = Stage(monkeypatch, num_generators=2, num_cpus=0.01)
    for name_, own in (
        ("placement_group", placement_group),
        ("remove_placement_group", remove_placement_group),
        ("_is_placed", is_placed),
    ):
        monkeypatch.setattr(f"actors.drafts.roster.{name_}", own)
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    (group,) = stage.roster._groups
    try:
        ray.get(group.handle.ready(), timeout=60)
        stage.now = 59.0
        stage.roster.beat("a")
        stage.now = 61.0
        for _ in range(5):
            stage.roster.beat("b")
        assert stage.killed == []
    finally:
        stage.roster.leave("a")
        stage.roster.leave("b")
    assert stage.roster._groups == []


def test_draft_actors_without_a_generator_end_with_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    for _ in range(14):
        stage.now += 10.0
        stage.roster.beat("b")
    assert stage.killed == ["01"]
    assert stage.removed == stage.groups[:1]
    assert stage.roster.stats()["num_actors"] == 1


def test_draft_actors_of_generators_that_come_at_once_are_placed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, num_generators=3, strategy="SPREAD", num_cpus=2, num_gpus=0.5, accelerator_type="L4")
    for generator in "abcd":
        stage.ask(generator)
    bundle = {"CPU": 2, "GPU": 0.5, "accelerator_type:L4": 0.001}
    assert [group.bundles for group in stage.groups] == [[bundle] * 3, [bundle]]
    assert {group.strategy for group in stage.groups} == {"SPREAD"}
    places = [actor.handle.options["scheduling_strategy"] for actor in stage.roster._actors]
    assert places == [(stage.groups[0], 0), (stage.groups[0], 1), (stage.groups[0], 2), (stage.groups[1], 0)]


def test_draft_actors_without_room_together_are_placed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, num_generators=2)
    stage.is_room = False  # for groups to come
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    stage.now = 50.0
    stage.roster.beat("b")
    stage.now = 61.0
    stage.roster.beat("a")
    assert stage.killed == ["01", "02"]
    assert stage.removed == stage.groups[:1]
    assert [stage.ask("a", lost="01"), stage.ask("b", lost="02")] == ["03", "04"]
    assert [len(group.bundles) for group in stage.groups] == [2, 1, 1]


def test_draft_actors_that_hold_nothing_need_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, num_cpus=0)
    assert stage.ask("a") == "01"
    assert stage.groups == []
