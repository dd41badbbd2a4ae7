"""A row that kills the target's stages fails, whatever stood in its slot before; what follows it there is right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from actors.sharded_model import ShardedModel
from decoding.sequence import Sequence
from tests.actors.sharded import (
    FIRST,
    PARAMS,
    POISON,
    PROMPTS,
    PoisonedGroup,
    make_engine,
    make_sequences,
    save_pair,
    sharded,
    texts,
)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
SAMPLED = replace(PARAMS, temperature=0.8)
LONG, OTHER = PROMPTS[6], PROMPTS[2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def model(ray_address: str, pair: tuple[str, str]) -> Iterator[ShardedModel]:
    """One stage, which dies over the poisonous token."""
    with sharded(pair[0], 1, PoisonedGroup, most_restarts=20) as model:
        yield model


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
    pair: tuple[str, str], model: ShardedModel, prompts: list[list[int]], options: dict[str, int]
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
