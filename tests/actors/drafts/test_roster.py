"""The roster shares, replaces and ends draft actors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.drafts.roster import DraftRoster
from actors.placement import DraftSettings
from actors.settings import GeneratorSettings, ModelSettings
from pipeline.logs import LogSettings


class Stage:
    """A roster without processes: draft actors are names, and placement groups are lists."""

    def __init__(self, num_generators: int = 1, **drafts: Any) -> None:
        self.now, self.killed, self.groups, self.removed, self.is_room = 0.0, [], [], [], True
        self._numbers = count(1)
        settings = GeneratorSettings(
            models=ModelSettings(target="t", draft="d"), placement="split", drafts=DraftSettings(**drafts)
        )
        self.ready = set[str]()  # draft actors that have loaded their models
        self.roster = DraftRoster(
            settings, "test", LogSettings(), num_generators, self._start, lambda: self.now, self.node_of
        )

    def _start(self, options: dict[str, Any]) -> Any:
        handle = SimpleNamespace(_actor_id=bytes([next(self._numbers)]), options=options)
        handle.__ray_ready__ = SimpleNamespace(remote=lambda: name(handle))
        return handle

    def node_of(self, actor: str) -> str:
        """Odd draft actors are on one node, even ones on another."""
        return "spot" if int(actor) % 2 else "steady"

    def group(self, bundles: list[dict[str, float]], strategy: str, bundle_label_selector: Any = None) -> Any:
        self.groups.append(SimpleNamespace(bundles=bundles, strategy=strategy, is_placed=self.is_room))
        return self.groups[-1]

    def ask(self, generator: str, index: int = 0, lost: str | None = None) -> str:
        return name(self.roster.draft_actor(generator, index, lost))

    def pass_time(self, until: float, *beating: str) -> None:
        """Let ten seconds pass again and again, after which these generators give a sign of life."""
        while self.now < until:
            self.now += 10.0
            for generator in beating:
                self.roster.beat(generator)


@pytest.fixture
def new_stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Return a function that makes a stage; a placement group is one of its lists unless `is_real`."""

    def make(num_generators: int = 1, *, is_real: bool = False, **drafts: Any) -> Stage:
        stage = Stage(num_generators, **drafts)
        fakes: dict[str, Any] = {"ray.kill": lambda handle: stage.killed.append(name(handle))}
        if not is_real:
            fakes |= {
                "placement_group": stage.group,
                "remove_placement_group": stage.removed.append,
                "_arrived": lambda names: [each for each in names if each in stage.ready],
                "_is_placed": lambda group: group.is_placed,
                "PlacementGroupSchedulingStrategy": lambda *place: place,
            }
        for patched, fake in fakes.items():
            monkeypatch.setattr(f"actors.drafts.roster.{patched}", fake)
        return stage

    monkeypatch.setattr("actors.drafts.roster.set_up_logs", lambda *_, **__: None)
    return make


NewStage = Callable[..., Stage]


def name(handle: Any) -> str:
    return str(handle._actor_id.hex())


def test_two_generators_share_a_draft_actor(new_stage: NewStage) -> None:
    stage = new_stage(per_target=0.5)
    assert [stage.ask(generator) for generator in ("a", "b", "c", "a", "d")] == ["01", "01", "02", "01", "02"]


def test_one_generator_has_two_draft_actors(new_stage: NewStage) -> None:
    stage = new_stage(per_target=2)
    assert [stage.ask("a", index) for index in (0, 1, 0)] == ["01", "02", "01"]
    assert stage.ask("b") == "03"


def test_a_lost_draft_actor_is_replaced_once_for_all_its_generators(new_stage: NewStage) -> None:
    stage = new_stage(per_target=0.5)
    assert [stage.ask("a"), stage.ask("b")] == ["01", "01"]
    assert [stage.ask("a", lost="01"), stage.ask("b", lost="01"), stage.ask("b", lost="01")] == ["02", "02", "02"]
    assert stage.killed == ["01"]
    assert len(stage.groups) == 1


def test_a_draft_actor_on_a_node_that_drains_ends_once_its_successor_is_ready(new_stage: NewStage) -> None:
    stage = new_stage(per_target=0.5)
    assert [stage.ask("a"), stage.ask("b"), stage.ask("c")] == ["01", "01", "02"]
    stage.roster.drain({"another"})
    stage.roster.drain({"spot"})
    assert [stage.ask("a"), stage.ask("c"), stage.ask("d")] == ["03", "02", "02"]
    stage.roster.drain(set())
    assert stage.killed == [], "the successor loads its model yet"
    stage.ready.add("03")
    stage.roster.drain(set())
    assert stage.killed == ["01"]
    assert [stage.ask("b", lost="01"), stage.ask("e")] == ["03", "04"]


def test_a_generator_that_gives_no_sign_of_life_leaves_its_draft_actor_to_others(new_stage: NewStage) -> None:
    stage = new_stage()
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    stage.pass_time(70.0, "b")
    assert stage.ask("c") == "01"
    assert stage.killed == []


def test_a_generator_that_was_silent_gets_its_draft_actor_back_while_it_exists(new_stage: NewStage) -> None:
    stage = new_stage()
    assert stage.ask("a") == "01"
    stage.pass_time(80.0, "b")
    stage.pass_time(290.0, "b", "a")
    assert stage.killed == []
    assert stage.ask("c") == "02"


def test_a_generator_that_leaves_ends_only_draft_actors_of_its_own(new_stage: NewStage) -> None:
    stage = new_stage(per_target=0.5)
    assert [stage.ask(generator) for generator in "abc"] == ["01", "01", "02"]
    stage.roster.leave("a")
    stage.roster.leave("c")
    stage.roster.leave("never came")
    assert stage.killed == ["02"]
    assert stage.removed == stage.groups[1:]
    assert stage.ask("d") == "01"


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_draft_actors_that_are_placed_keep_their_places(new_stage: NewStage) -> None:
    """Real placement groups: right after two are placed together, `wait(0)` may still return False."""
    stage = new_stage(num_generators=2, num_cpus=0.01, is_real=True)
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


def test_draft_actors_without_a_generator_end_with_their_group(new_stage: NewStage) -> None:
    stage = new_stage()
    assert [stage.ask("a"), stage.ask("b")] == ["01", "02"]
    stage.pass_time(140.0, "b")
    assert stage.killed == ["01"]
    assert stage.removed == stage.groups[:1]


def test_draft_actors_of_generators_that_come_at_once_are_placed_together(new_stage: NewStage) -> None:
    stage = new_stage(num_generators=3, strategy="SPREAD", num_cpus=2, num_gpus=0.5, accelerator_type="L4")
    for generator in "abcd":
        stage.ask(generator)
    bundle = {"CPU": 2, "GPU": 0.5, "accelerator_type:L4": 0.001}
    assert [group.bundles for group in stage.groups] == [[bundle] * 3, [bundle]]
    assert {group.strategy for group in stage.groups} == {"SPREAD"}
    places = [actor.handle.options["scheduling_strategy"] for actor in stage.roster._actors]
    assert places == [(stage.groups[0], 0), (stage.groups[0], 1), (stage.groups[0], 2), (stage.groups[1], 0)]


def test_draft_actors_without_room_together_are_placed_one_by_one(new_stage: NewStage) -> None:
    stage = new_stage(num_generators=2)
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


def test_draft_actors_that_hold_nothing_need_no_group(new_stage: NewStage) -> None:
    stage = new_stage(num_cpus=0)
    assert stage.ask("a") == "01"
    assert stage.groups == []
