"""A target in stages whose stages are killed all the time: every token is the one of the undisturbed target."""

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.drafts.remote_drafter import DraftLinks
from actors.drafts.roster import start_roster
from actors.placement import DraftSettings, StageSettings
from actors.settings import GeneratorSettings, ModelSettings
from actors.stages.group import StageGroup
from actors.stages.places import give_back_orphans
from decoding.engine.engine import Engine
from decoding.engine.rounds.prefix import Resident
from decoding.network.target import SlotsLostError
from decoding.sequence import Sequence
from pipeline.logs import LogSettings
from tests.actors.sharded import PARAMS, POISON, Pair, kill, make_engine, make_sequences, sharded, texts
from tests.decoding.tiny import random_prompts
from tests.jobs.runs import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("ray_address", "one_thread"),
]
NUM_STAGES = 3
KILLS_OF_EACH = 2  # in each of the two runs
NUM_ROWS, NUM_TOKENS = 180, 72


def rows(params: Any) -> list[Sequence]:
    """Return rows of many lengths; every third one begins like the one before it."""
    lengths = [1 + (7 * row) % 40 for row in range(NUM_ROWS)]
    prompts = random_prompts(lengths, vocab_size=POISON, seed=8)
    for row in range(2, NUM_ROWS, 3):
        prompts[row] = prompts[row - 1] + [row % POISON]
    return make_sequences(params, prompts)


@pytest.fixture(scope="module")
def links(pair: Pair, ray_address: str) -> Iterator[DraftLinks]:
    """Yield the links to a draft actor that is ready."""
    settings = GeneratorSettings(
        models=ModelSettings(target=pair[0], draft=pair[1], device="cpu", dtype="float32"),
        placement="split",
        drafts=DraftSettings(num_cpus=0, timeout_s=60.0),
    )
    roster = start_roster(settings, "test", LogSettings(level="error"), 1)
    links = DraftLinks(settings, roster)
    yield links
    links.close()
    ray.kill(roster)


@pytest.mark.parametrize("drafter", ["model", "remote"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_stages_that_are_killed_again_and_again_change_no_token(temperature, drafter, pair, links, say):
    params = replace(PARAMS, temperature=temperature, max_tokens=NUM_TOKENS)
    expected = texts(make_engine(pair, None), rows(params))
    generator = random.Random(temperature)
    victims = [stage for stage in range(NUM_STAGES) for _ in range(KILLS_OF_EACH)]
    generator.shuffle(victims)
    with sharded(pair[0], NUM_STAGES) as model:
        group = model.pipeline.group

        deaths = {
            50 * number + generator.randrange(5, 45): partial(kill, model, victim)
            for number, victim in enumerate(victims)
        }
        remote = links if drafter == "remote" else None
        sequences = rows(params)
        found = texts(make_engine(pair, model, num_lanes=NUM_STAGES, links=remote), sequences, deaths)
        assert found == expected
        assert sum(sequence.num_accepted_tokens for sequence in sequences) > len(sequences)
        assert group.num_replaced == NUM_STAGES * KILLS_OF_EACH
    say(f"{group.num_replaced} kills, {sum(map(len, found))} tokens at temperature {temperature}, all as undisturbed")


@pytest.mark.parametrize("bug", ["nothing is read again", "output is not read again"])
def test_the_suite_sees_a_recovery_that_is_wrong(bug, pair, monkeypatch):
    if bug == "nothing is read again":

        def go_on(engine: Engine, lost: SlotsLostError) -> None:
            for lane in engine.lanes:
                lane._turns = None
                lane.target.allocate(lane._num_slots, engine.max_model_len)

        monkeypatch.setattr(Engine, "_readmit", go_on)
    else:
        prompt_only = property(lambda r: len(r.sequence.prompt_token_ids) - 1 - r.num_filled)
        monkeypatch.setattr(Resident, "num_missing", prompt_only)
    params = replace(PARAMS, temperature=0.8, max_tokens=NUM_TOKENS)
    expected = texts(make_engine(pair, None), rows(params)[:20])
    with sharded(pair[0], 2) as model:
        deaths = dict.fromkeys((20, 40), partial(kill, model, 1))
        assert texts(make_engine(pair, model), rows(params)[:20], deaths) != expected


@ray.remote
class Owner:
    """A process with stages, as a generator is."""

    def start(self, path: str) -> tuple[list[int], str]:
        self.group = StageGroup(path, StageSettings(count=2, num_cpus=0.1), "cpu", "float32")
        return self.group.ask_all("pid"), self.group._places.id.hex()


def test_stages_end_with_the_process_that_started_them_and_their_room_is_free_again(pair):
    owner = Owner.options(num_cpus=0).remote()
    pids, place = ray.get(owner.start.remote(pair[0]))
    give_back_orphans()
    assert ray.util.placement_group_table()[place]["state"] == "CREATED", "its maker lives"
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    ray.kill(owner, no_restart=True)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    give_back_orphans()  # as the next generator does
    wait_until(lambda: ray.util.placement_group_table()[place]["state"] == "REMOVED", 60)


def test_a_stage_that_hangs_is_replaced(pair):
    expected = texts(make_engine(pair, None), make_sequences(PARAMS))
    with sharded(pair[0], 2, timeout_s=3.0) as model:
        pids = model.pipeline.group.ask_all("pid")
        freeze = partial(os.kill, pids[1], signal.SIGSTOP)
        assert texts(make_engine(pair, model), make_sequences(PARAMS), {8: freeze}) == expected
        assert model.pipeline.group.num_replaced == 1
