"""Draft and target apart: the same tokens as together, whatever happens to the draft actor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import ray
import torch

from actors.drafts import roster as draft_roster
from actors.drafts.mirror import DraftTerms
from actors.drafts.remote_drafter import DraftLinks, RemoteDrafter
from actors.placement import DraftSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters.making import make_drafter
from decoding.drafters.model import ModelDrafter
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel
from pipeline.logs import LogSettings
from pipeline.ray_internals import actor_id_of, is_actor_dead
from tests.actors.sharded import Pair, make_sequences
from tests.decoding.tiny import numbered, rows_over
from tests.jobs.runs import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("one_thread")]
Text = tuple[list[int], str | None]  # with the reason of its end
Plain = dict[str, list[Text]]
NUM_SLOTS, MAX_LEN, K = 4, 96, 5
PROMPTS = [[5, 6, 7, 8, 9] * n + [20 + n] for n in (1, 3, 2, 6, 1, 4, 9, 2)]
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "sampled": SamplingParams(temperature=0.8, max_tokens=24, n=2),
    "penalized": SamplingParams(
        temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.3, max_tokens=20, min_tokens=4
    ),
    "forbidding": SamplingParams(
        temperature=0.8,
        max_tokens=24,
        allowed_token_ids=tuple(range(0, 200, 2)),
        bad_words=[(12,), *((a, (a + more) % 200) for a in range(0, 200, 2) for more in (0, 2, 6))],
    ),
    "stopped": SamplingParams(temperature=0.8, max_tokens=24, stop_token_ids=tuple(range(0, 300, 9))),
}


@pytest.fixture(scope="module")
def target(text_pair: Pair) -> LanguageModel:
    return LanguageModel.load(text_pair[0], "cpu")


def engine_over(target: LanguageModel, drafter: Any, verification: str = "coupled") -> Engine:
    options = EngineOptions(
        num_slots=NUM_SLOTS, max_model_len=MAX_LEN, num_speculative_tokens=K, verification=verification
    )
    return Engine([(target, drafter)], options, MAX_LEN)


def terms(target: LanguageModel, verification: str = "coupled", most_candidates: int = 0) -> DraftTerms:
    return DraftTerms(NUM_SLOTS, MAX_LEN, target.vocab_size, target.eos_token_ids, verification, most_candidates)


def counts_and_tokens(sequences: list[Sequence]) -> list[Any]:
    return [(s.output_token_ids, s.finish_reason, s.num_rounds, s.num_accepted_tokens) for s in sequences]


@pytest.mark.parametrize("name", PARAMS)
def test_a_remote_drafter_drafts_like_a_local_one(target: LanguageModel, text_pair: Pair, run: Run, name: str) -> None:
    draft = LanguageModel.load(text_pair[1], "cpu")
    local = make_drafter("model", draft, target.vocab_size, NUM_SLOTS, MAX_LEN)
    expected = counts_and_tokens(engine_over(target, local).generate(PROMPTS, PARAMS[name], seed=3))
    remote = RemoteDrafter(run.links._links[0], "alone", terms(target), 60.0)
    assert counts_and_tokens(engine_over(target, remote).generate(PROMPTS, PARAMS[name], seed=3)) == expected
    assert sum(row[3] for row in expected) > 40


@pytest.fixture(scope="module")
def settings(text_pair: Pair) -> GeneratorSettings:
    return GeneratorSettings(
        models=ModelSettings(target=text_pair[0], draft=text_pair[1], device="cpu", dtype="float32"),
        engine=EngineSettings(
            num_slots=NUM_SLOTS, num_lanes=2, max_model_len=MAX_LEN, num_speculative_tokens=K, draft_length="fixed"
        ),
        placement="split",
        drafts=DraftSettings(num_cpus=0, timeout_s=60.0),
    )


def start_roster(settings: GeneratorSettings, num_generators: int = 1) -> Any:
    return draft_roster.start_roster(settings, "test", LogSettings(level="error"), num_generators)


@pytest.fixture(scope="module")
def roster(settings: GeneratorSettings, ray_address: str) -> Iterator[Any]:
    actor = start_roster(settings)
    yield actor
    ray.kill(actor)


def texts(sequences: list[Sequence]) -> list[Text]:
    return [(sequence.output_token_ids, sequence.finish_reason) for sequence in sequences]


class Run:
    """An engine with two lanes over draft actors, and what it does to them between two steps."""

    def __init__(self, target: LanguageModel, settings: GeneratorSettings, roster: Any, links: Any = None) -> None:
        self.links = links or DraftLinks(settings, roster)
        self.links.connect(target)
        drafter = settings.engine.pick_drafter(settings.models.draft)
        parts = Parts(target, None, drafter, MAX_LEN, self.links.num_lanes, self.links)
        self.engine = Engine.over(parts, settings.engine)

    @property
    def pid(self) -> int:
        """Return the process id of the draft actor."""
        actor = self.links._links[0].actor()
        return 0 if actor is None else int(ray.get(actor.ready.remote(self.engine.target.vocab_size)))

    def wait_for_drafts(self, timeout_s: float) -> None:
        """Have every round wait this long for its draft."""
        for lane in self.engine.lanes:
            lane.drafter._timeout_s = timeout_s  # type: ignore[attr-defined]

    def write(self, params: SamplingParams, after_step: Callable[[int], object] = lambda step: None) -> list[Text]:
        sequences = make_sequences(params, PROMPTS, run_seed=3)
        self.engine.submit(sequences)
        for step in count(1):
            if not self.engine.has_work:
                break
            self.engine.step()
            after_step(step)
        self.num_accepted = sum(sequence.num_accepted_tokens for sequence in sequences)
        return texts(sequences)


@pytest.fixture(scope="module")
def run(target: LanguageModel, settings: GeneratorSettings, roster: Any) -> Run:
    return Run(target, settings, roster)


@pytest.fixture(scope="module")
def plain(target: LanguageModel) -> Plain:
    """What the target writes alone, one row after the other."""
    options = EngineOptions(num_slots=1, max_model_len=MAX_LEN)
    engine = Engine([(target.share(), make_drafter("none", None, target.vocab_size, 1, MAX_LEN))], options, MAX_LEN)
    return {name: texts(engine.generate(PROMPTS, params, seed=3)) for name, params in PARAMS.items()}


@pytest.mark.parametrize("name", PARAMS)
def test_two_lanes_over_a_draft_actor_write_what_the_target_writes_alone(run: Run, plain: Plain, name: str) -> None:
    before = run.links.work(1.0)
    assert run.write(PARAMS[name]) == plain[name]
    assert run.num_accepted > 40
    after = run.links.work(1.0)
    assert after.draft_seconds > before.draft_seconds, "its actor says how long it drafted"
    assert after.actor_seconds == 1.0


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_lengths_that_are_weighed_by_what_the_link_takes_change_no_token(
    run: Run, target: LanguageModel, settings: GeneratorSettings, plain: Plain, drafter: Any
) -> None:
    engine = replace(settings.engine, drafter=drafter, draft_length="adaptive")
    adaptive = Run(target, replace(settings, engine=engine), None, run.links)
    costs = adaptive.engine.lanes[0].schedule.costs
    assert costs is not None
    assert costs.is_overlapped
    assert costs.trip_seconds > 0
    assert adaptive.write(PARAMS["sampled"]) == plain["sampled"]
    assert adaptive.num_accepted > 0
    run.engine = Run(target, settings, None, run.links).engine  # lanes of the same names


def test_lanes_that_weigh_their_lengths_draft_with_an_actor_that_comes_late(
    target: LanguageModel, settings: GeneratorSettings, roster: Any, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is the measuring drafter's, which is gone when its answer comes."""
    engine, drafts = replace(settings.engine, draft_length="adaptive"), replace(settings.drafts, timeout_s=0.05)
    links = DraftLinks(replace(settings, engine=engine, drafts=drafts), roster)
    (link,) = links._links
    monkeypatch.setattr(links, "connect", lambda target: False)  # it has waited for long enough
    try:
        wait_until(lambda: link.actor() is not None)
        actor_id = actor_id_of(link._actor)
        late = Run(target, replace(settings, engine=engine), None, links)
        assert late.write(PARAMS["greedy"]) == plain["greedy"]
        assert link.stats.num_timeouts > 0
        wait_until(lambda: link.is_up)
        assert all(lane.drafter.has_model for lane in late.engine.lanes)
        num_asked = link.stats.num_requests
        late.wait_for_drafts(60.0)
        assert late.write(PARAMS["sampled"]) == plain["sampled"]
        assert link.stats.num_requests > num_asked
    finally:
        links.close()
    wait_until(lambda: is_actor_dead(actor_id))


def test_two_engines_on_one_draft_actor_with_memory_for_less_than_both_write_the_same(
    run: Run, target: LanguageModel, settings: GeneratorSettings, plain: Plain
) -> None:
    """A lane that was forgotten is sent again."""
    other = [
        (target.share(), RemoteDrafter(run.links._links[0], f"other/{lane}", terms(target), 60.0)) for lane in range(3)
    ]
    most = draft_roster.max_lanes(settings)
    assert len(other) + len(run.engine.lanes) > most
    beside = Engine(other, settings.engine, MAX_LEN)
    sequences = make_sequences(PARAMS["greedy"], PROMPTS, run_seed=3)
    beside.submit(sequences)
    assert run.write(PARAMS["sampled"], lambda _: beside.has_work and beside.step()) == plain["sampled"]
    while beside.has_work:
        beside.step()
    assert texts(sequences) == plain["greedy"]
    assert run.num_accepted > 40
    assert sum(s.num_accepted_tokens for s in sequences) > 40
    assert ray.get(run.links._links[0].actor().num_lanes.remote()) == most


@pytest.mark.parametrize("most_candidates", [0, 16])
def test_under_rejection_the_distributions_of_a_remote_draft_are_those_of_a_local_one(
    run: Run, target: LanguageModel, text_pair: Pair, most_candidates: int
) -> None:
    sequences = numbered(PROMPTS[:3], temperature=0.8, repetition_penalty=1.3)
    rows = rows_over(sequences, (4, 0, 2), "rejection")
    link = run.links._links[0]
    remote = RemoteDrafter(link, "rejection", terms(target, "rejection", most_candidates), 60.0)
    local = ModelDrafter(LanguageModel.load(text_pair[1], "cpu"), target.vocab_size, 3, MAX_LEN, most_candidates)
    local.admit([0, 1, 2], sequences)
    with torch.inference_mode():
        expected = local.propose(rows)
    before = replace(link.stats)
    found = remote.propose(rows)
    distribution_bytes = link.stats.num_distribution_bytes - before.num_distribution_bytes
    assert distribution_bytes == 6 * 8 * (most_candidates or target.vocab_size)
    assert link.stats.num_bytes_received - before.num_bytes_received - distribution_bytes <= 2 * 32
    assert found.num_draft_tokens_B.tolist() == [4, 0, 2]
    assert found.max_draft_tokens_B == (4, 0, 2)
    assert expected.probs_BKV is not None
    assert found.probs_BKV is not None
    for row, num in enumerate([4, 0, 2]):
        assert found.token_ids_BK[row, :num].equal(expected.token_ids_BK[row, :num])
        torch.testing.assert_close(found.probs_BKV[row, :num], expected.probs_BKV[row, :num], rtol=1e-4, atol=1e-6)


def test_a_round_of_a_row_takes_at_most_64_bytes(run: Run) -> None:
    before = run.links.stats
    run.write(PARAMS["sampled"])
    crossed = {name: value - getattr(before, name) for name, value in vars(run.links.stats).items()}
    assert crossed["num_rows"] > 50
    assert (crossed["num_distribution_bytes"], crossed["num_timeouts"]) == (0, 0)
    num_bytes = crossed["num_bytes_sent"] - crossed["num_new_row_bytes"] + crossed["num_bytes_received"]
    assert num_bytes <= 64 * crossed["num_rows"]


def test_a_draft_actor_that_is_killed_changes_no_token_and_the_next_drafts(run: Run, plain: Plain) -> None:
    def kill(step: int) -> None:
        if step == 9:
            os.kill(run.pid, signal.SIGKILL)

    assert run.write(PARAMS["sampled"], kill) == plain["sampled"]
    assert run.links.stats.num_losses == 1
    wait_until(lambda: bool(run.pid))
    assert run.write(PARAMS["sampled"]) == plain["sampled"]
    assert run.num_accepted > 40


def test_nothing_is_asked_of_a_frozen_draft_actor_which_drafts_again_when_it_wakes(run: Run, plain: Plain) -> None:
    pid, num_asked, stats_before = run.pid, [0, 0], run.links.stats
    run.wait_for_drafts(0.5)

    def freeze(step: int) -> None:
        if step == 9:
            num_asked[0] = run.links.stats.num_requests
            os.kill(pid, signal.SIGSTOP)
        if step == 30:
            num_asked[1] = run.links.stats.num_requests
            os.kill(pid, signal.SIGCONT)

    try:
        assert run.write(PARAMS["sampled"], freeze) == plain["sampled"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert num_asked[1] - num_asked[0] <= len(run.engine.lanes)
    assert run.links.stats.num_timeouts > stats_before.num_timeouts
    assert run.links.stats.num_losses == stats_before.num_losses
    run.wait_for_drafts(60.0)
    wait_until(lambda: run.links._links[0].is_up)  # though no lane has anything to ask
    assert run.pid == pid
    assert run.write(PARAMS["sampled"]) == plain["sampled"]
    assert run.num_accepted > 40
