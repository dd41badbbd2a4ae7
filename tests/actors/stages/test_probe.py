"""Stages that compute something else than a plain forward are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from actors.stages.actor import StageActor
from actors.stages.group import StageGroup
from decoding.cache.kv_cache import KVCache
from decoding.cache.plan import Plan
from tests.actors.sharded import kill_actor_and_wait, sharded

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


class OffStage(StageActor):
    """A stage whose results on slots are off by a thousandth."""

    def do(self, work: Any, fed: Any, finish: Any = None) -> Any:
        answer = super().do(work, fed, finish)
        is_off = work.session is not None and isinstance(answer.out, torch.Tensor)
        return answer._replace(out=answer.out * (1 + 1e-3)) if is_off else answer


class PeepingStage(StageActor):
    """A stage whose rows see one position too many: junk, or what comes next."""

    def load(self) -> Any:
        plan_of = KVCache.plan

        def plan(cache: KVCache, *arguments: Any, **named: Any) -> Plan:
            plan = plan_of(cache, *arguments, **named)
            peeping = replace(plan, positions_BT=plan.positions_BT + 1, positions_N=plan.positions_N + 1)
            cache.use(peeping)
            return peeping

        KVCache.plan = plan
        return super().load()


class OffGroup(StageGroup):
    actor_class = OffStage


class PeepingGroup(StageGroup):
    actor_class = PeepingStage


@pytest.mark.parametrize("kind", [OffGroup, pytest.param(PeepingGroup, marks=pytest.mark.slow)])
def test_stages_that_compute_something_else_are_refused(kind, pair):
    with pytest.raises(ValueError, match="does not compute the same in stages"), sharded(pair[0], 1, kind):
        raise AssertionError("they were let through")


class DyingGroup(StageGroup):
    """A stage dies before it is told to become faster."""

    def tell_all(self, method: str, *args: Any) -> None:
        if method == "speed_up":
            kill_actor_and_wait(self.actors[0])
        super().tell_all(method, *args)


def test_a_stage_that_dies_before_it_is_made_faster_is_replaced_by_one_that_is(pair):
    with sharded(pair[0], 2, DyingGroup) as model:
        assert model.pipeline.group.num_replaced == 1
        assert all(facts.is_fused for facts in model.pipeline.facts())
