"""A stage that dies or fails while it loads is replaced, or loads again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors.stages.target import ShardedModel
from tests.actors.sharded import PROMPTS, SAMPLED, Pair, PoisonedGroup, make_engine, make_sequences, sharded, texts

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]


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


def test_loading_that_fails_while_a_stage_is_replaced_is_tried_again(pair: Pair, model: ShardedModel) -> None:
    expected = texts(make_engine(pair, None, "none"), make_sequences(SAMPLED, PROMPTS[:4]))
    folder, group = Path(pair[0]), model.pipeline.group
    num_replaced = group.num_replaced

    def kill(step: int) -> None:
        if step == 4:
            (folder / "fail_load").touch()
            ray.kill(group.actors[0], no_restart=True)

    found = texts(make_engine(pair, model, "none", num_lanes=1), make_sequences(SAMPLED, PROMPTS[:4]), kill)
    assert found == expected
    assert not (folder / "fail_load").exists()
    assert group.num_replaced == num_replaced + 1, "the stage whose loading failed was told to load again"
