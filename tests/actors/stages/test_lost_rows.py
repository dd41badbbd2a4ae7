"""A row that kills the target's stages fails, whatever stood in its slot before; what follows it there is right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors.stages.target import ShardedModel
from decoding.sequence import Sequence
from tests.actors.sharded import (
    FIRST,
    POISON,
    PROMPTS,
    SAMPLED,
    Pair,
    PoisonedGroup,
    make_engine,
    make_sequences,
    sharded,
    texts,
)
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
LONG, OTHER = PROMPTS[6], PROMPTS[2]


@pytest.fixture(scope="module")
def model(ray_address: str, pair: Pair) -> Iterator[ShardedModel]:
    """One stage, which died once while it loaded, and dies over the poisonous token."""
    (Path(pair[0]) / "die_load").touch()
    with sharded(pair[0], 1, PoisonedGroup, most_restarts=20) as model:
        assert model.pipeline.group.num_replaced == 1
        yield model


def test_a_stage_that_dies_while_it_loads_is_replaced(pair: Pair, model: ShardedModel) -> None:
    sequences = make_sequences(SAMPLED, PROMPTS[:2])
    assert texts(make_engine(pair, model, "none", num_lanes=1), sequences) == texts(
        make_engine(pair, None, "none"), make_sequences(SAMPLED, PROMPTS[:2])
    )


@pytest.mark.parametrize(
    ("prompts", "options"),
    [
        pytest.param([LONG, [*OTHER[:20], POISON, *OTHER[:8]], OTHER], {"num_slots": 1}, id="after a longer row"),
        pytest.param(
            [LONG, [*OTHER[:20], POISON, *OTHER[:8]], OTHER],
            {"num_slots": 1, "max_prefill_tokens": 16},
            id="in a later chunk of its prompt",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [LONG, PROMPTS[4], [*FIRST[:40], POISON, 1, 2], [*FIRST[:44], 7], OTHER],
            {"num_slots": 2, "max_prefill_tokens": 8},
            id="while another waits to copy its prompt",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_row_whose_prompt_kills_a_stage_is_not_written_over_what_stood_in_its_slot(
    pair: Pair, model: ShardedModel, prompts: list[list[int]], options: dict[str, int]
) -> None:
    engine = make_engine(pair, model, "none", num_lanes=1, **options)
    found = texts(engine, make_sequences(SAMPLED, prompts))
    sound = [index for index, prompt in enumerate(prompts) if POISON not in prompt]
    expected = [
        texts(make_engine(pair, None, "none"), [Sequence.create(prompts[index], SAMPLED, row=index)])[0]
        for index in sound
    ]
    assert [found[index] for index in sound] == expected
    (error,) = (str(text) for index, text in enumerate(found) if index not in sound)
    assert "a stage of the target was lost over this row, 2 times with nothing beside it" in error


def test_what_fails_while_a_stage_is_replaced_is_repeated_or_raised_and_what_comes_then_is_right(
    pair: Pair, model: ShardedModel
) -> None:
    """Loading fails once, which may pass; then writing the tokens again does, which is no stage's death."""
    other = model.share()
    for session in (model, other):
        session.allocate(2, 60)
    other.prefill([1], [OTHER])
    model.prefill([0], [LONG[:50]])
    expected = model.logits([0], [50], [[5]])
    folder, group = Path(pair[0]), model.pipeline.group
    (folder / "fail_load").touch()
    (folder / "fail_do").touch()
    num_replaced, (pid,) = group.num_replaced, group.ask_all("pid")
    ray.kill(group.actors[0], no_restart=True)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    with pytest.raises(OSError, match="do failed, as it was told"):
        model.logits([0], [50], [[6]])
    assert not (folder / "fail_load").exists()
    assert group.num_replaced == num_replaced + 1, "the stage whose loading failed was told again"
    assert other._standing() == [0, 0], "nothing is taken to stand that was not written again"
    model.prefill([0], [LONG[:50]])
    assert (model.logits([0], [50], [[5]]) - expected).abs().max() < 1e-4
