"""A row that loses its slot goes on where it was: the same tokens, the same finish, counts that add up."""

import random
from collections.abc import Set
from unittest.mock import Mock

import pytest

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters import DRAFTERS
from decoding.drafters.lookups import SuffixDrafter
from decoding.engine.rounds.prefix import Resident
from decoding.engine.scored_text import ScoredText
from decoding.engine.token_engine import TargetLostError
from decoding.network.language_model import LanguageModel
from decoding.network.target import SlotsLostError
from tests.decoding import tiny
from tests.decoding.engine.test_lanes import lanes_over
from tests.decoding.tiny import EVERY_DRAFTER, assert_each_once, engine_over, numbered, outputs, random_prompts, run
from tests.pairs_of_values import every_pair

HEAD = random_prompts([20], seed=31)[0]
# Repeats, prompts that begin alike, a prompt that repeats itself, and strangers.
PROMPTS = [*random_prompts([7, 1, 33, 3, 1], seed=32), [5, 6, 7, 8] * 5, *[HEAD] * 3, [*HEAD, 4], [*HEAD[:12], 9, 9]]
KINDS = [
    {},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "logprobs": 2},
    {"stop_token_ids": (11, 30, 41), "min_tokens": 5},
]


def sequences(temperature: float) -> list[Sequence]:
    each = [{"max_tokens": 6 + 5 * row % 21, **KINDS[row % len(KINDS)]} for row in range(len(PROMPTS))]
    return numbered(PROMPTS, each, temperature=temperature)


@pytest.fixture(scope="module")
def undisturbed(models) -> dict[float, list[Sequence]]:
    """The rows by temperature, each one alone in an engine."""
    return {
        temperature: [run(engine_over(models.target, num_slots=1), [row])[0] for row in sequences(temperature)]
        for temperature in (0.0, 0.8)
    }


def run_with_evictions(engine: Engine, rows: list[Sequence], chance: random.Random) -> int:
    """Throw random rows out of their slots between random steps; return how many of them had output."""
    engine.submit(rows)
    finished, num_evicted = [], 0
    while engine.has_work:
        finished += engine.step()
        if chance.random() < 0.4:
            evicted = [row for row in engine.in_flight if chance.random() < 0.5]
            num_evicted += sum(bool(row.output_token_ids) for row in evicted)
            engine.evict(evicted)
            assert not set(evicted) & set(engine.in_flight)
            for lane in engine.lanes:
                for slot, resident in enumerate(lane.admission._residents):
                    if resident is None:  # what it held is not to be relied on
                        lane.target.cache.zero(slot)
    assert_each_once(finished, rows)
    return num_evicted


def assert_same(found: list[Sequence], expected: list[Sequence]) -> None:
    assert outputs(found) == outputs(expected)
    for row, other in zip(found, expected, strict=True):
        tiny.check_counts(row)
        assert (row.finish_reason, row.stop_reason) == (other.finish_reason, other.stop_reason)
        assert 0 <= row.num_cached_tokens < len(row.prompt_token_ids)
        assert [entry.logprob for entry in row.logprobs] == pytest.approx([e.logprob for e in other.logprobs], abs=1e-4)


@pytest.mark.parametrize(
    ("drafter", "temperature", "num_slots", "budget"), every_pair(list(EVERY_DRAFTER), [0.0, 0.8], [1, 4, 7], [5, 512])
)
def test_rows_that_lose_their_slots_write_the_same(models, undisturbed, drafter, temperature, num_slots, budget):
    engine = tiny.engine_by(models, drafter, num_slots=num_slots, max_prefill_tokens=budget, num_speculative_tokens=3)
    found = sequences(temperature)
    assert run_with_evictions(engine, found, random.Random(num_slots)) >= 5
    assert_same(found, undisturbed[temperature])


@pytest.mark.parametrize(
    ("drafter", "temperature", "is_remote", "is_staged"),
    every_pair(list(DRAFTERS), [0.0, 0.8], [False, True], [False, True]),
)
def test_rows_evicted_in_mid_round_write_the_same(models, undisturbed, drafter, temperature, is_remote, is_staged):
    engine, _ = lanes_over(models, drafter, is_remote=is_remote, is_staged=is_staged)
    found = sequences(temperature)
    assert run_with_evictions(engine, found, random.Random(drafter)) >= 5
    assert_same(found, undisturbed[temperature])


def test_the_check_sees_a_row_that_is_read_without_its_output(models, undisturbed, monkeypatch):
    monkeypatch.setattr(
        Resident, "num_missing", property(lambda r: len(r.sequence.prompt_token_ids) - 1 - r.num_filled)
    )
    found = sequences(0.8)
    run_with_evictions(engine_over(models.target, num_slots=4), found, random.Random(0))
    assert outputs(found) != outputs(undisturbed[0.8])


def test_evicted_rows_wait_in_front_of_all_others_and_keep_their_counts(models):
    engine = engine_over(models.target, num_slots=2)
    rows = numbered([HEAD] * 4, max_tokens=9, ignore_eos=True)
    engine.submit(rows)
    for _ in range(3):
        engine.step()
    assert [row.num_cached_tokens for row in rows[:2]] == [0, len(HEAD) - 1]
    engine.evict(rows[:2])
    assert engine.up_next() == set(rows[:2])
    list(engine.stream([]))
    assert [row.num_cached_tokens for row in rows[:2]] == [0, len(HEAD) - 1]
    assert [row.num_rounds for row in rows] == [9] * 4


def test_a_row_that_waits_to_copy_from_an_evicted_one_reads_for_itself(models):
    engine = engine_over(models.target, num_slots=4, max_prefill_tokens=3)
    blocker = Sequence.create([1], SamplingParams(max_tokens=60, ignore_eos=True), row=9)
    (prompt,) = random_prompts([60], seed=9)
    rows, alone = (numbered([prompt] * 3, max_tokens=5) for _ in range(2))
    engine.submit([blocker, *rows])
    engine.step()
    assert engine.num_running == 4
    engine.evict(rows[:1])
    assert len(list(engine.stream([]))) == 4
    assert outputs(rows) == outputs(run(engine_over(models.target, num_slots=1), alone))


def test_an_evicted_row_that_is_dropped_is_not_read_again(models):
    engine = engine_over(models.target, num_slots=2)
    kept, unwanted = numbered([[1, 0], [1, 1]], max_tokens=8)
    engine.submit([kept, unwanted])
    engine.step()
    engine.evict([unwanted])
    engine.drop([unwanted])
    assert engine.step() == [unwanted]
    assert len(unwanted.output_token_ids) == 1
    list(engine.stream([]))
    assert len(kept.output_token_ids) == 8


USES = {"prefill", "score", "decide", "logprobs", "is_finite"}  # what needs slots, or decides


class Processes:
    """The processes of a target that are lost at every n-th call, and with them what all slots held.

    `counted` are the calls of which every n-th is a loss, until there were `max_losses`. Without slots all fail.
    """

    def __init__(self, engine: Engine, every: int, counted: Set[str] = USES, max_losses: int = 1000) -> None:
        self.num_losses = 0
        self._num_uses, self._every, self._counted, self._max_losses = 0, every, counted, max_losses
        for lane in engine.lanes:
            self._hold(lane.target)

    def _hold(self, target) -> None:
        num_seen, allocate, share = self.num_losses, target.allocate, target.share

        def allocate_and_hold(num_slots, num_positions):
            nonlocal num_seen
            allocate(num_slots, num_positions)
            num_seen = self.num_losses
            hold_cache()

        def hold_cache():
            target.cache.is_finite = losing(target.cache.is_finite)

        def share_and_hold():
            twin = share()
            for name in ("allocate", "share", *USES):
                vars(twin).pop(name, None)  # a copy of what holds the other one
            self._hold(twin)
            return twin

        def losing(method):
            def use(*args, **kwargs):
                if method.__name__ in self._counted and self.num_losses < self._max_losses:
                    self._num_uses += 1
                    self.num_losses += self._num_uses % self._every == 0
                if num_seen != self.num_losses:
                    raise SlotsLostError("planted")
                return method(*args, **kwargs)

            return use

        target.allocate, target.share = allocate_and_hold, share_and_hold
        if target.cache is not None:
            hold_cache()
        for name in USES - {"is_finite"}:
            setattr(target, name, losing(getattr(target, name)))


@pytest.mark.parametrize(
    ("drafter", "temperature", "num_lanes", "is_remote"),
    every_pair(list(DRAFTERS), [0.0, 0.8], [1, 2], [False, True]),
)
def test_a_target_that_loses_slots_changes_no_token(models, undisturbed, drafter, temperature, num_lanes, is_remote):
    engine, _ = lanes_over(models, drafter, num_lanes, is_remote=is_remote)
    processes, found = Processes(engine, every=7), sequences(temperature)
    run(engine, found)
    assert processes.num_losses >= 2
    assert_same(found, undisturbed[temperature])


def test_a_row_that_is_being_seated_when_the_target_is_lost_is_not_forgotten(models, undisturbed):
    engine = engine_over(models.target.share(), num_slots=4, max_prefill_tokens=5)
    processes, found = Processes(engine, every=1, counted={"is_finite"}, max_losses=2), sequences(0.8)
    run(engine, found)
    assert processes.num_losses == 2
    assert_same(found, undisturbed[0.8])


def test_a_row_that_is_being_seated_when_memory_runs_out_still_waits(models, undisturbed, monkeypatch):
    engine, found = engine_over(models.target, models.good_draft, "model", num_slots=2), sequences(0.8)
    engine.submit(found)
    with monkeypatch.context() as patched:
        patched.setattr(engine.lanes[0].drafter, "begin", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            engine.step()
    assert engine.up_next() == set(found[:2])
    assert_each_once(engine.stream([]), found)
    assert_same(found, undisturbed[0.8])


def test_a_target_that_is_lost_over_the_same_rows_again_and_again_is_an_error_of_one_step(models, undisturbed):
    engine, _ = lanes_over(models, "none", 2)
    engine.submit(found := sequences(0.0))
    for _ in range(4):
        engine.step()
    processes = Processes(engine, every=1, max_losses=3)
    for _ in range(2):
        assert engine.step() == []
    with pytest.raises(TargetLostError, match="3 times over rows that wrote nothing in between: planted"):
        engine.step()
    assert processes.num_losses == 3
    assert_each_once(engine.stream([]), found)
    assert_same(found, undisturbed[0.0])


def test_losses_between_which_texts_went_on_are_not_their_fault(models):
    texts, expected = ([ScoredText.whole(prompt) for prompt in random_prompts([40, 33], seed=7)] for _ in range(2))
    lanes_over(models)[0].score(expected)
    engine = engine_over(models.target.share(), num_slots=4, max_prefill_tokens=2)
    processes = Processes(engine, every=3, counted={"logprobs"})
    for text in texts:
        engine.score([text])
    assert processes.num_losses >= 3
    for text, other in zip(texts, expected, strict=True):
        assert text.error is None
        values = [entry.logprob for entry in other.scores[0]]
        assert [entry.logprob for entry in text.scores[0]] == pytest.approx(values, abs=1e-4)


def test_a_text_over_which_the_target_is_lost_again_and_again_fails_alone(models, monkeypatch):
    texts = [ScoredText.whole(prompt) for prompt in random_prompts([20, 30, 25], seed=7)]
    engine, _ = lanes_over(models)
    logprobs = LanguageModel.logprobs

    def lose(self, stretches):
        if any(len(stretch.token_ids) == 29 for stretch in stretches):
            raise SlotsLostError("planted")
        return logprobs(self, stretches)

    monkeypatch.setattr(LanguageModel, "logprobs", lose)
    engine.score(texts)
    assert [text.error is None for text in texts] == [True, False, True]
    assert "lost over this text, twice: planted" in texts[1].error


@pytest.mark.parametrize(("drafter", "draft_length"), [("hybrid", "adaptive"), ("none", "fixed"), ("model", "fixed")])
def test_an_engine_that_is_resized_in_mid_run_writes_the_same(folders, undisturbed, drafter, draft_length):
    options = EngineOptions(num_slots=4, max_model_len=80, drafter=drafter, draft_length=draft_length)
    engine = Engine.load(folders.target, folders.good_draft, options, device="cpu")
    found, sizes = sequences(0.8), iter([2, 1, 6])
    engine.submit(found)
    for number in range(1000):
        engine.step()
        if number in (2, 5, 9):
            seconds = engine.round_seconds
            engine.resize(next(sizes))
            assert engine.round_seconds == seconds, "rounds of the lanes before are forgotten"
    assert not engine.has_work
    assert engine.options.num_slots == 6
    assert_same(found, undisturbed[0.8])


def test_under_rejection_a_lookup_recognizes_a_row_that_comes_back(models):
    """The row's own noise is then not taken for that of another row, which would forbid every lookup."""
    engine = engine_over(models.target, drafter="suffix", num_slots=2, verification="rejection", max_model_len=90)
    rows = numbered([[5, 6, 7, 8] * 5] * 2, temperature=0.2, max_tokens=30, ignore_eos=True)
    engine.submit(rows)
    while not all(len(row.output_token_ids) > 4 for row in rows):
        engine.step()
    before = [row.num_draft_tokens for row in rows]
    engine.evict(rows)
    engine.step()
    drafter = engine.lanes[0].drafter
    assert isinstance(drafter, SuffixDrafter)
    for writer in drafter._writers.values():
        known = drafter._known.of(writer.sequence.scope.texts).continuations
        assert not known.holds_another(writer.sequence.noise_key, writer.number)
    list(engine.stream([]))
    assert sum(row.num_draft_tokens for row in rows) > sum(before)
