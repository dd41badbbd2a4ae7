"""The hybrid drafter: a source for each row, looked-up tokens behind the model's, caches that stay right."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.base import NoDrafter
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.drafters.making import make_drafter
from decoding.drafters.model import ModelDrafter
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.pace.draft_lengths import DraftPlan
from decoding.pace.schedule import FixedSchedule
from decoding.sampling.rows import ExtensionLimit, Rows
from decoding.sampling.verdicts import Draft
from tests.decoding import tiny
from tests.decoding.tiny import VOCAB_SIZE, audit, check_counts, drafted, engine_over, numbered, outputs, run
from tests.decoding.toy import rejection_rule

CHEAP = CostTable(((1, 1.0), (1000, 3.0)), ((1, 0.1), (64, 0.1)))
PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 9, 11], [5, 6, 7, 8, 9, 12]]


def adaptive(engine: Engine, costs: CostTable = CHEAP) -> Engine:
    engine.lanes[0].schedule = AdaptiveSchedule(costs, engine.options.num_speculative_tokens)
    return engine


def drafted_by_source(engine: Engine) -> dict[str, Counter]:
    """Count the tokens that each source of the engine's drafter drafts from now on, and those that are accepted."""
    drafter = engine.lanes[0].drafter
    counts = {name: Counter() for name in ("lookup", "model", "extension")}
    observe = drafter.observe

    def record(rows, num_drafted, num_accepted):
        found = zip(rows.uses_lookup, num_drafted, num_accepted, strict=True)
        for slot, (uses_lookup, length, accepted) in enumerate(found):
            if uses_lookup:
                counts["lookup"].update(drafted=length, accepted=accepted)
                continue
            by_model, _ = drafter._extensions.get(slot, (length, None))
            counts["model"].update(drafted=min(length, by_model), accepted=min(accepted, by_model))
            counts["extension"].update(drafted=max(0, length - by_model), accepted=max(0, accepted - by_model))
        observe(rows, num_drafted, num_accepted)

    drafter.observe = record
    return counts


def at_random(monkeypatch, seed: int) -> None:
    """Plans of every kind: rows that draft nothing, look up, or draft with the model, with an extension or without."""
    chance = random.Random(seed)

    def plan(self, sequences, lookup_survival, has_model):
        limits = self.lengths(sequences)
        drafts_nothing = chance.random() < 0.2
        lengths = [0 if drafts_nothing or chance.random() < 0.2 else chance.randint(0, limit) for limit in limits]
        uses_lookup = [chance.random() < 0.5 for _ in limits]
        extension_limits = tuple(
            ExtensionLimit(limit - n, 0.0) if n and not up and chance.random() < 0.6 else ExtensionLimit(0, 1.0)
            for limit, n, up in zip(limits, lengths, uses_lookup, strict=True)
        )
        self._plan = DraftPlan(tuple(lengths), tuple(uses_lookup), extension_limits=extension_limits)
        return self._plan

    monkeypatch.setattr(FixedSchedule, "plan", plan)


@pytest.mark.parametrize(("num_slots", "draft"), [(1, "good_draft"), (4, "unrelated_draft"), (16, "good_draft")])
def test_eight_samples_of_templated_prompts_are_those_of_plain_decoding(models, draft, num_slots):
    params = SamplingParams(n=8, temperature=0.8, max_tokens=40, ignore_eos=True)
    expected = outputs(engine_over(models.target, num_slots=num_slots).generate(PROMPTS, params, seed=2))
    for costs in (CHEAP, CostTable(((1, 1.0), (1000, 1.1)), ((1, 0.5), (64, 0.9)))):
        engine = engine_over(
            models.target, getattr(models, draft), "hybrid", num_slots=num_slots, num_speculative_tokens=8
        )
        counts = drafted_by_source(engine)
        sequences = adaptive(engine, costs).generate(PROMPTS, params, seed=2)
        assert outputs(sequences) == expected
        assert tiny.num_rechecks(engine) == 0
        for sequence in sequences:
            check_counts(sequence)
        total = sum(counts.values(), Counter())
        assert total["drafted"] <= sum(s.num_draft_tokens for s in sequences)
        assert total["accepted"] == pytest.approx(sum(s.num_accepted_tokens for s in sequences), rel=0.02)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("seed", range(2))
def test_both_caches_equal_fresh_prefills_in_rounds_that_leave_rows_out(models, fresh, seed, verification, monkeypatch):
    at_random(monkeypatch, seed)
    engine = tiny.engine_by(models, "hybrid", num_slots=5, num_speculative_tokens=6, verification=verification)
    engine.submit(numbered(tiny.random_prompts([5, 1, 12, 3, 20, 2, 40, 1, 15, 6], seed=6), max_tokens=30))
    max_missing = 0
    while engine.has_work:
        engine.step()
        max_missing = max(max_missing, audit(engine, fresh["target"], fresh["good_draft"]))
    assert max_missing > 2, "no row was left out for long enough to put this to the test"


def drafted_by_a_perfect_model(models) -> Counter:
    engine = engine_over(models.target, models.perfect_draft, "hybrid", num_slots=6, num_speculative_tokens=6)
    counts = drafted_by_source(engine)
    run(engine, numbered(tiny.random_prompts([5, 1, 12, 3, 20, 2, 8, 1, 15, 6, 30, 4], seed=6), max_tokens=40))
    return counts["model"]


@pytest.mark.parametrize(("max_in_a_step", "seed"), [(2, 0), (5, 1), (32, 2)])
def test_what_the_model_drafts_is_accepted_whichever_rows_were_left_out(models, seed, max_in_a_step, monkeypatch):
    """The draft is the target: any hole in its cache would show."""
    at_random(monkeypatch, seed)
    monkeypatch.setattr("decoding.drafters.model._MAX_IN_A_STEP", max_in_a_step)
    model = drafted_by_a_perfect_model(models)
    assert model["accepted"] == model["drafted"] > 100


def test_the_check_would_see_a_row_whose_missing_tokens_are_skipped(models, monkeypatch):
    """The planted bug: a row that looked up counts as read up to its newest token."""
    at_random(monkeypatch, 0)
    real = ModelDrafter.propose

    def skip(self, rows):
        for slot, sequence in enumerate(rows.sequences):
            self.slots.num_known[slot] = max(self.slots.num_known[slot], len(sequence) - 1)
        return real(self, rows)

    monkeypatch.setattr(ModelDrafter, "propose", skip)
    model = drafted_by_a_perfect_model(models)
    assert model["accepted"] < model["drafted"]


def _rows(prompts: list[list[int]], limits: list[int], uses_lookup: list[bool], verification: str = "coupled") -> Rows:
    return tiny.rows_over(numbered(prompts, max_tokens=60), limits, verification, uses_lookup=tuple(uses_lookup))


LOOP = [5, 6, 5, 6, 5, 6, 5, 6, 5]


def test_rows_that_look_up_cost_no_draft_steps_and_few_rows_step_alone(models, monkeypatch):
    steps = []
    real = models.good_draft.forward

    def forward(starts, token_ids_BT, logits_at_BJ, slots=None, lengths=None):
        steps.append(list(slots))
        return real(starts, token_ids_BT, logits_at_BJ, slots, lengths)

    drafter = make_drafter("hybrid", models.good_draft, VOCAB_SIZE, 8, 80)
    rows = _rows([LOOP] * 8, [4] * 8, [True] * 8)
    drafter.admit(range(8), rows.sequences)
    monkeypatch.setattr(models.good_draft, "forward", forward)
    with torch.inference_mode():
        drafter.propose(rows)
        assert steps == []
        drafter.propose(replace(rows, uses_lookup=(True,) * 6 + (False, True)))
        assert steps == [[6]] * 4
        steps.clear()
        drafter.propose(replace(rows, uses_lookup=(False,) * 8, num_draft_tokens=(4, 4, 4, 2, 2, 2, 2, 1)))
        assert steps == [list(range(8))] * 2 + [[0, 1, 2]] * 2


def test_an_extension_continues_the_models_tokens_as_if_they_were_accepted(models):
    drafter = make_drafter("hybrid", models.good_draft, VOCAB_SIZE, 2, 80)
    rows = _rows([LOOP, [9, 8, 7]], [2, 2], [False, False])
    drafter.admit(range(2), rows.sequences)
    with torch.inference_mode():
        without = drafted(drafter.propose(rows))
        text = [*PROMPTS[0], *without[0], 30, 31, 32]
        drafter._lookup.admit([1], [Sequence.create(text, SamplingParams(), row=9)])
        drafter.lookup_survival(rows)  # in which it learns that text
        drafter._lookup._writers[0].prompt_key = hash(tuple(text)) & ((1 << 60) - 1)
        for max_tokens, expected in ((2, [30, 31]), (1, [30]), (0, [])):
            limits = (ExtensionLimit(max_tokens, 0.0), ExtensionLimit(0, 1.0))
            found = drafted(drafter.propose(replace(rows, extension_limits=limits)))
            assert found == [without[0] + expected, without[1]]


@pytest.mark.parametrize(("num_drafted", "num_in_all"), [(3, 5), (2, 2)])
def test_no_extension_follows_a_draft_that_its_model_has_ended(num_drafted, num_in_all):
    class Brief(NoDrafter):
        def propose(self, rows):
            return Draft(torch.tensor([[5, 6, 7]]), torch.tensor([num_drafted]), max_draft_tokens_B=(num_drafted,))

    drafter = HybridDrafter(SuffixDrafter(), Brief())
    rows = replace(_rows([[*LOOP, 5, 6, 7, *LOOP]], [3], [False]), extension_limits=(ExtensionLimit(2, 0.0),))
    drafter.admit([0], rows.sequences)
    (found,) = drafted(drafter.propose(rows))
    assert len(found) == num_in_all


def test_under_rejection_looked_up_tokens_are_point_masses_beside_the_models_distributions(models):
    drafter = make_drafter("hybrid", models.good_draft, VOCAB_SIZE, 3, 80)
    rows = _rows([LOOP, LOOP[1:], [9, 8, 7]], [4, 2, 3], [True, False, False], "rejection")
    rows = replace(rows, extension_limits=(ExtensionLimit(0, 1.0), ExtensionLimit(3, 0.0), ExtensionLimit(0, 1.0)))
    drafter.admit(range(3), rows.sequences)
    with torch.inference_mode():
        draft = drafter.propose(rows)
    counts = draft.num_draft_tokens_B.tolist()
    assert counts[0] == 4
    assert counts[2] == 3
    point = {(0, j) for j in range(4)} | {(1, j) for j in range(2, counts[1])}
    for row, count in enumerate(counts):
        for j in range(count):
            probs_V = draft.probs_BKV[row, j]
            assert probs_V.sum() == pytest.approx(1, abs=1e-5)
            assert probs_V[draft.token_ids_BK[row, j]] > 0
            assert (probs_V.max() == 1) == ((row, j) in point)


def test_a_draft_model_that_never_drafts_never_runs(models, monkeypatch):
    """Prompts of rows that come later are not read, either, until the first draft reads what it needs."""
    engine = engine_over(models.target, models.good_draft, "model", num_slots=2)
    engine.generate(tiny.random_prompts([4, 4]), SamplingParams(max_tokens=1))
    calls = []
    real = models.good_draft.forward
    monkeypatch.setattr(models.good_draft, "forward", lambda *a, **k: calls.append(a) or real(*a, **k))
    monkeypatch.setattr(FixedSchedule, "lengths", lambda self, sequences: (0,) * len(sequences))
    engine.generate(tiny.random_prompts([4, 4]), SamplingParams(max_tokens=20))
    calls.clear()
    sequences = numbered(PROMPTS, max_tokens=60)
    engine.submit(sequences)
    for _ in range(10):
        engine.step()
    assert calls == []
    monkeypatch.undo()
    expected = outputs(engine_over(models.target).generate(PROMPTS, SamplingParams(max_tokens=60)))
    list(engine.stream([]))
    assert outputs(sequences) == expected
    assert sum(s.num_accepted_tokens for s in sequences) > 20


def test_an_extension_may_depend_on_drafted_tokens_before_it_but_not_on_itself():
    """Enumerate drafts of up to two of three tokens; the second token, and whether it exists, depend on tokens."""
    target = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]], dtype=torch.float64)  # after each token
    draft = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    second = [1, 2, 2]  # what a lookup finds behind each drafted token

    def distribution(has_second) -> dict[tuple[int, int], float]:
        found = dict.fromkeys(product(range(3), repeat=2), 0.0)
        for first in range(3):
            probs_1KV = torch.stack([draft, torch.eye(3, dtype=torch.float64)[second[first]]])[None]
            count = torch.tensor([has_second(first)])
            tokens = torch.tensor([[first, second[first]]])
            target_1JV = torch.stack([target[0], target[first], target[second[first]]])[None]
            accept, recover = (x[0].tolist() for x in rejection_rule(target_1JV, Draft(tokens, count, probs_1KV)))
            weight = float(draft[first])
            for token in range(3):  # the first is rejected
                for after in range(3):
                    found[token, after] += weight * (1 - accept[0]) * recover[0][token] * float(target[token, after])
            accepted = weight * accept[0]
            found[first, second[first]] += accepted * accept[1]
            for token in range(3):
                found[first, token] += accepted * (1 - accept[1]) * recover[1][token]
        return found

    expected = {(a, b): float(target[0, a] * target[a, b]) for a, b in product(range(3), repeat=2)}
    for has_second in (lambda first: 2, lambda first: 1 + (first == 1), lambda first: 1):
        assert distribution(has_second) == pytest.approx(expected, abs=1e-12)
    assert distribution(lambda first: 2 * (first == 1)) != pytest.approx(expected, abs=1e-3)
