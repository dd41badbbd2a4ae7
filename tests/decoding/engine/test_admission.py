"""Prompts are read in chunks and copied where they repeat; the text never shows it, and no row waits for ever."""

import math

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.making import make_drafter
from decoding.network.language_model import LanguageModel
from decoding.scope import Scope
from tests.decoding import tiny
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import (
    EVERY_DRAFTER,
    POISON,
    assert_each_once,
    engine_over,
    loaded,
    numbered,
    outputs,
    random_prompts,
    run,
)
from tests.worlds.rows import shared

HEAD = random_prompts([40], seed=21)[0]


def _engine(models, drafter: str, *, budget: int = 512, **options: object) -> Engine:
    return engine_over(models.target, models.good_draft, drafter, max_prefill_tokens=budget, **options)


def _alone(models, prompt: list[int], params: SamplingParams, row: int = 0) -> list[int]:
    """The output of a row in an engine of its own."""
    (sequence,) = run(_engine(models, "none", num_slots=1), [Sequence.create(prompt, params, row=row)])
    return sequence.output_token_ids


def _strangers(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Prompts that share nothing: each begins with a token of its own."""
    return [[first, *tail] for first, tail in enumerate(random_prompts([n - 1 for n in lengths], seed=seed), start=2)]


class Reads:
    """What a model is made to compute of prompts: (slot, start, tokens) of each call."""

    def __init__(self, monkeypatch, model: LanguageModel) -> None:
        self.calls: list[list[tuple[int, int, int]]] = []
        real = model.prefill

        def prefill(slots, token_ids, starts=None):
            pieces = [(slot, start, len(row)) for slot, start, row in zip(slots, starts, token_ids, strict=True) if row]
            if pieces:
                self.calls.append(pieces)
            real(slots, token_ids, starts)

        monkeypatch.setattr(model, "prefill", prefill)

    @property
    def num_tokens(self) -> int:
        return sum(num_tokens for call in self.calls for _, _, num_tokens in call)


@pytest.mark.parametrize("num_slots", [1, 3, 8])
@pytest.mark.parametrize("budget", [7, 512])
def test_n_samples_of_a_prompt_are_read_once_by_target_and_draft(models, monkeypatch, num_slots, budget):
    target, draft = Reads(monkeypatch, models.target), Reads(monkeypatch, models.good_draft)
    engine = _engine(models, "model", num_slots=num_slots, budget=budget)
    (prompt,) = random_prompts([50], seed=3)
    sequences = engine.generate([prompt], SamplingParams(max_tokens=6, n=8))
    assert target.num_tokens == draft.num_tokens == 49
    assert sorted(sequence.num_cached_tokens for sequence in sequences) == [0] + [49] * 7


@pytest.mark.parametrize(("num_slots", "budget"), [(1, 512), (3, 7), (8, 7), (8, 512)])
def test_a_prompt_is_read_once_for_each_scope(models, monkeypatch, num_slots, budget):
    target, draft = Reads(monkeypatch, models.target), Reads(monkeypatch, models.good_draft)
    engine = _engine(models, "model", num_slots=num_slots, budget=budget)
    (prompt,) = random_prompts([50], seed=3)
    params = SamplingParams(max_tokens=6)
    rows = [Sequence.create(prompt, params, row=row, scope=Scope(prefixes=str(row // 3))) for row in range(6)]
    run(engine, rows)
    assert target.num_tokens == draft.num_tokens == 2 * 49
    assert [row.num_cached_tokens for row in rows] == [0, 49, 49] * 2


def test_prompts_with_a_common_head_compute_it_once(models, monkeypatch):
    target, draft = Reads(monkeypatch, models.target), Reads(monkeypatch, models.good_draft)
    prompts = [[*HEAD, token, *tail] for token, tail in enumerate(random_prompts([3, 8, 2, 5, 1], seed=7))]
    engine = _engine(models, "model", num_slots=4)
    engine.generate(prompts, SamplingParams(max_tokens=5))
    expected = len(HEAD) + sum(len(prompt) - len(HEAD) - 1 for prompt in prompts)
    assert target.num_tokens == draft.num_tokens == expected
    # The first prompt, then what the others have of their own, together; the fifth comes when a slot is free.
    assert [len(call) for call in target.calls] == [1, 3, 1][: len(target.calls)]


@pytest.mark.parametrize(
    ("drafter", "num_shared"),
    [("none", 40), ("eagle3", 39), ("peagle", 39), ("dflash", 39), ("mtp", 37), ("assistant", 39)],
)
def test_a_common_head_is_read_once_by_layers_with_states_whatever_the_drafter_reads(drafter, num_shared, tmp_path):
    target = loaded(family_network("gated delta", STATES), tmp_path)
    prompts = [HEAD + tail for tail in random_prompts([9, 3, 30], seed=22)]
    params = {"max_tokens": 8, "temperature": 0}
    rows = run(engine_over(target, None, drafter, num_slots=3), numbered(prompts, **params))
    assert [row.num_cached_tokens for row in rows] == [0, num_shared, num_shared]
    assert outputs(rows) == outputs(run(engine_over(target, num_slots=1), numbered(prompts, **params)))


def test_a_prompt_whose_head_is_in_a_free_slot_takes_the_slot_over(models, monkeypatch):
    engine = _engine(models, "model", num_slots=3)
    first, second = random_prompts([30, 30], seed=9)
    engine.generate([first, second], SamplingParams(max_tokens=4))
    copies = []
    monkeypatch.setattr(engine.target.cache, "copy", lambda *a: copies.append(a))
    reads = Reads(monkeypatch, models.target)
    (text,) = engine.generate([[*second[:25], 1, 2]], SamplingParams(max_tokens=4))
    assert text.num_cached_tokens == 25
    assert reads.num_tokens == 1
    assert copies == []


def test_a_prompt_that_continues_a_finished_row_shares_what_that_row_wrote(models):
    """A conversation: the next turn begins with the last one and its answer, all but the answer's last token."""
    engine = _engine(models, "model", num_slots=2)
    (turn,) = engine.generate([HEAD], SamplingParams(temperature=0, max_tokens=10))
    follow_up = [*turn.token_ids, 5, 6, 7]
    (found,) = engine.generate([follow_up], SamplingParams(temperature=0, max_tokens=8))
    assert found.num_cached_tokens == len(turn) - 1
    assert found.output_token_ids == _alone(models, follow_up, SamplingParams(temperature=0, max_tokens=8))


# Budgets


def _steps(engine: Engine, reads: Reads) -> list[tuple[int, int]]:
    """Step to the end; return for each step the prompt tokens that were read, and the rows that run on after it."""
    found, before = [], 0
    while engine.has_work:
        engine.step()
        found.append((reads.num_tokens - before, sum(not sequence.is_finished for sequence in engine.lanes[0].running)))
        before = reads.num_tokens
    return found


@pytest.mark.parametrize("budget", [1, 7, 20])
def test_running_rows_wait_for_a_budget_of_tokens_and_not_for_a_prompt(models, monkeypatch, budget):
    """The budget is that of a full engine; with a third of the rows waiting for it, it is three times as long."""
    reads = Reads(monkeypatch, models.target)
    engine = _engine(models, "none", num_slots=3, budget=budget)
    first = Sequence.create([1], SamplingParams(max_tokens=70))
    engine.submit([first])
    engine.step()
    engine.submit(numbered(_strangers([61, 41], seed=13), max_tokens=5))
    num_waiting = 1
    for num_read, num_rows in _steps(engine, reads):
        assert num_read <= 3 * budget // num_waiting
        num_waiting = max(1, num_rows)
    assert reads.num_tokens == 60 + 40
    assert len(first.output_token_ids) == 70


def test_while_no_row_runs_the_budgets_of_all_slots_are_read(models, monkeypatch):
    reads = Reads(monkeypatch, models.target)
    engine = _engine(models, "none", num_slots=4, budget=15)
    engine.submit(numbered(_strangers([16] * 4), max_tokens=3))
    assert _steps(engine, reads) == [(60, 4), (0, 4), (0, 0)]


def test_short_prompts_overtake_a_long_one_that_still_gets_half_of_every_budget(models, monkeypatch):
    reads = Reads(monkeypatch, models.target)
    engine = _engine(models, "none", num_slots=5, budget=4)
    *prompts, long_prompt = _strangers([*[9] * 40, 75])
    long = Sequence.create(long_prompt, SamplingParams(max_tokens=3), tag="long")
    short = numbered(prompts, max_tokens=1)  # gone at once: there is always a new one
    engine.submit([Sequence.create([1], SamplingParams(max_tokens=2)), long, *short])
    order = []
    while engine.has_work:
        order += [sequence.tag for sequence in engine.step()]
        if "long" not in order:
            slots = engine.lanes[0].admission._residents
            assert any(resident.sequence is long for resident in slots if resident)
    where = order.index("long")
    assert 3 < where < 20, "neither at once nor after all the others"
    assert reads.num_tokens == 74 + 40 * 8


def test_long_prompts_do_not_keep_a_short_one_waiting(models):
    """Three long prompts came first and need 90 tokens each; half of a budget of 8 is enough for the short one."""
    engine = _engine(models, "none", num_slots=5, budget=8, max_model_len=96)
    engine.submit([Sequence.create([1], SamplingParams(max_tokens=90))])
    engine.step()
    *longs, short = numbered(_strangers([91, 91, 91, 9], seed=4), max_tokens=1)
    engine.submit([*longs, short])
    finished = [sequence for _ in range(2) for sequence in engine.step()]
    assert finished == [short]


# Values that are not finite


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    return tiny.poisoned_models(tmp_path_factory.mktemp("poisoned"), math.nan)


def test_a_draft_that_broke_stays_with_its_row_when_slots_are_swapped(poisoned, models):
    drafter = make_drafter("model", poisoned.poisoned_draft, tiny.VOCAB_SIZE, 3, 80)
    broken, sound = [1, POISON, 2], [3, 4, 5]

    def num_drafted(prompts: list[list[int]]) -> list[int]:
        rows = tiny.rows_over(numbered(prompts, temperature=0, max_tokens=9), [2] * len(prompts))
        with torch.inference_mode():
            return drafter.propose(rows).num_draft_tokens_B.tolist()

    drafter.prefill([0, 1, 2], [broken[:-1], sound[:-1], sound[:-1]])
    assert num_drafted([broken, sound]) == [0, 2]
    drafter.swap(0, 2)
    assert num_drafted([sound, sound, broken]) == [2, 2, 0]
    drafter.begin(2, None, 0)
    drafter.prefill([2], [sound[:-1]])
    assert num_drafted([sound, sound, sound]) == [2, 2, 2]


# Starting over


@pytest.mark.parametrize("drafter", EVERY_DRAFTER)
def test_a_cleared_engine_has_no_rows_and_shares_nothing(models, drafter):
    engine = _engine(models, drafter, num_slots=3, budget=5)
    engine.submit(shared())
    for _ in range(4):
        engine.step()
    assert engine.has_work
    engine.clear()
    assert (engine.num_running, engine.has_work, len(engine._waiting)) == (0, False, 0)
    params = SamplingParams(temperature=0, max_tokens=6)
    (again,) = engine.generate([[*HEAD, 1, 2, 3]], params)
    assert again.num_cached_tokens == 0
    assert again.output_token_ids == _alone(models, [*HEAD, 1, 2, 3], params)


def test_a_row_that_is_dropped_before_it_writes_is_not_read_and_ends_at_once(models, monkeypatch):
    target, draft = Reads(monkeypatch, models.target), Reads(monkeypatch, models.good_draft)
    engine = _engine(models, "model", num_slots=2, budget=7)
    prompts = [[1], *_strangers([60, 50, 40], seed=8)]
    writing, filling, *waiting = sequences = numbered(prompts, max_tokens=30, ignore_eos=True)
    engine.submit(sequences)
    engine.step()
    assert engine.num_running == 2
    assert 0 < target.num_tokens < 59, "half a prompt is read"
    num_read, num_rounds = target.num_tokens, writing.num_rounds
    engine.drop(sequences)
    assert_each_once(engine.step(), sequences)
    assert not engine.has_work
    assert (target.num_tokens, draft.num_tokens) == (num_read, num_read), "a prompt was read in vain"
    assert (writing.finish_reason, writing.num_rounds) == ("length", num_rounds + 1)
    assert all(s.finish_reason == "error" and not s.num_rounds for s in [filling, *waiting])
    engine.drop(sequences)
    assert not engine.has_work, "a row that has left the engine cannot be dropped"


def test_rows_that_waited_for_a_dropped_prompt_share_with_the_next_of_them(models, monkeypatch):
    target = Reads(monkeypatch, models.target)
    engine = _engine(models, "none", num_slots=4, budget=7)
    (prompt,) = random_prompts([60], seed=9)
    sequences = numbered([prompt] * 4, max_tokens=5)
    blocker = Sequence.create([1], SamplingParams(max_tokens=70, ignore_eos=True), row=9)
    engine.submit([blocker, *sequences[:3]])
    engine.step()
    assert 0 < target.num_tokens < 59
    num_read = target.num_tokens
    engine.drop(sequences[:1])
    engine.submit(sequences[3:])
    assert_each_once(list(engine.stream([])), [blocker, *sequences])
    assert target.num_tokens == num_read + 59, "each of the others read it again"
    assert outputs(sequences[1:]) == [_alone(models, prompt, SamplingParams(max_tokens=5), row) for row in (1, 2, 3)]
