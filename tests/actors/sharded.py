"""What tests of a target in stages share: sequences, engines over stages, and stages that die over a token."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.drafts.remote_drafter import DraftLinks
from actors.placement import StageSettings
from actors.stages.actor import StageActor
from actors.stages.group import StageGroup
from actors.stages.pipeline import StagePipeline
from actors.stages.probe import check_chain
from actors.stages.target import ShardedModel
from decoding import Engine, EngineOptions, SamplingParams
from decoding.sequence import Sequence
from tests.decoding.tiny import random_prompts

Pair = tuple[str, str]  # paths of a target and a draft (`conftest.pair`)
POISON = 47  # a token that no row draws unless its logit bias says so
PARAMS = SamplingParams(max_tokens=24, logit_bias={POISON: -100.0})
SAMPLED = replace(PARAMS, temperature=0.8)
FIRST = random_prompts([50], vocab_size=POISON, seed=4)[0]
# Of many lengths, so that rows change slots; some begin alike, so that slots are copied.
PROMPTS = [
    *random_prompts([9, 1, 30, 4, 17, 1, 60, 2], vocab_size=POISON),
    FIRST,
    [*FIRST[:40], 3, 1],
    [*FIRST[:44], 7],
]


class PoisonedStage(StageActor):
    """A stage that dies when it reads the token, once it is armed, or once where a file beside the model says so."""

    is_armed = False

    def load(self) -> Any:
        fail, die = (Path(self._arguments[0]) / name for name in ("fail_load", "die_load"))
        if fail.exists():
            fail.unlink()
            raise OSError("loading failed, as the test wants")
        if die.exists():
            die.unlink()
            os._exit(1)
        return super().load()

    def arm(self) -> None:
        self.is_armed = True

    def do(self, work: Any, fed: Any, finish: Any = None) -> Any:
        if self.is_armed and isinstance(fed, list) and POISON in fed:
            os._exit(1)
        return super().do(work, fed, finish)


class PoisonedGroup(StageGroup):
    actor_class = PoisonedStage


@contextmanager
def sharded(path: str, num_stages: int, kind: type[StageGroup] = StageGroup, **settings: Any) -> Iterator[ShardedModel]:
    """Hold a checked model in stages; its processes end with the block."""
    group = kind(path, StageSettings(count=num_stages, num_cpus=0.1, **settings), "cpu", "float32")
    model = ShardedModel(StagePipeline(group))
    try:
        check_chain(model, path)
        if kind is PoisonedGroup:
            group.tell_all("arm")
        yield model
    finally:
        model.pipeline.close()


def make_engine(
    pair: Pair,
    model: ShardedModel | None,
    drafter: str = "model",
    num_lanes: int = 2,
    links: DraftLinks | None = None,
    **options: Any,
) -> Engine:
    """Load an engine over stages, or over the same target in this process; with `links`, draft actors draft."""
    settings = {"num_slots": 5, "max_model_len": 120, "num_speculative_tokens": 4, "draft_length": "fixed", **options}
    if model is not None:
        settings.setdefault("num_lanes", num_lanes)
    return Engine.load(
        pair[0],
        pair[1] if drafter == "model" else None,
        EngineOptions(drafter=drafter, **settings),
        device="cpu",
        dtype="float32",
        remote=links,
        target_model=model,
    )


def make_sequences(params: SamplingParams, prompts: list[list[int]] = PROMPTS, run_seed: int = 0) -> list[Sequence]:
    """Make new sequences, `params.n` of each prompt; the same every time."""
    return [
        Sequence.create(prompt, params, run_seed=run_seed, row=row, sample=sample)
        for row, prompt in enumerate(prompts)
        for sample in range(params.n)
    ]


def texts(engine: Engine, sequences: list[Sequence], at: Mapping[int, Callable[[], object]] | None = None) -> list[Any]:
    """Return the output of each sequence, or its error; before the steps with the numbers in `at` do what it says."""
    at = dict(at or {})
    engine.submit(sequences)
    for step in count():
        if not engine.has_work:
            break
        at.pop(step, lambda: None)()
        engine.step()
    assert not at, "the run was too short"
    return [sequence.error or sequence.output_token_ids for sequence in sequences]


def kill(model: ShardedModel, stage: int, rank: int = 0) -> None:
    """Kill a process of a stage."""
    ray.kill(model.pipeline.group.ranks[stage][rank], no_restart=True)


def kill_and_wait(model: ShardedModel, stage: int) -> None:
    """Kill a stage, and return when its process has ended: a call that was made before that may still be answered."""
    kill_actor_and_wait(model.pipeline.group.actors[stage])


def kill_actor_and_wait(actor: Any) -> None:
    """Kill the actor of a stage, and return when its process has ended."""
    ray.kill(actor, no_restart=True)
    while True:
        try:
            ray.get(actor.pid.remote())
        except RayActorError:
            return
