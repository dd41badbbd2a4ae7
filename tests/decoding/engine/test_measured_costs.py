"""What drafts of another process cost is measured through the drafter that asks for them."""

from types import SimpleNamespace

import pytest
import torch

from decoding.cache.features import FeatureTap
from decoding.drafters.base import Drafter, NoDrafter, point_masses
from decoding.engine.instant_parts import InstantTarget
from decoding.engine.measured_costs import with_overhead, with_remote_drafts
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from decoding.sampling.rows import Rows
from decoding.sampling.rules import COUPLED
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

HERE = CostTable(target=((1, 1.0), (8, 2.0)), draft=((1, 0.0), (4, 0.0)), round_seconds=0.5, position_seconds=0.01)


class Elsewhere(Drafter):
    """Takes so long by a clock of its own: a trip, and for each step a time and a time a row."""

    is_remote = True
    has_model = True

    def __init__(self, is_reachable: bool = True) -> None:
        self.now = 0.0
        self._is_reachable = is_reachable

    def propose(self, rows: Rows) -> "object":  # type: ignore[override]
        length, num_rows = max(rows.num_draft_tokens), len(rows.sequences)
        self.now += 0.7 + length * (0.2 + 0.01 * num_rows)
        drafted = [[0] * length * self._is_reachable for _ in rows.sequences]
        return point_masses(drafted, torch.device("cpu"))


@pytest.fixture
def measure(monkeypatch):
    def measured(drafter: Elsewhere) -> CostTable:
        monkeypatch.setattr("decoding.engine.measured_costs.time.perf_counter", lambda: drafter.now)
        return with_remote_drafts(HERE, drafter, torch.device("cpu"), 4, 5)

    return measured


def test_a_trip_and_a_step_are_told_apart(measure):
    costs = measure(Elsewhere())
    assert costs.is_overlapped
    assert costs.trip_seconds == pytest.approx(0.7)
    assert dict(costs.draft) == pytest.approx({1: 0.21, 2: 0.22, 4: 0.24})
    assert costs.drafting_seconds(3, 2) == pytest.approx(3 * 0.22)
    assert costs.drafting_seconds(0, 0) == 0


def test_drafts_that_could_not_be_timed_are_assumed_to_take_an_eighth_of_a_forward(measure):
    costs = measure(Elsewhere(is_reachable=False))
    assert costs.is_overlapped
    assert dict(costs.draft) == pytest.approx({n: HERE.target_seconds(n) / 8 for n in (1, 2, 4)})


def test_drafting_that_verification_hides_is_not_taken_for_overhead(measure):
    """A round of two rows that drafts 3 tokens each: its target forward, its own work, and no more of the draft."""
    costs = measure(Elsewhere())
    schedule = AdaptiveSchedule(costs, 5)
    sequences = [Sequence.create([0], SamplingParams(max_tokens=50), row=row) for row in range(2)]
    plan = schedule.plan(sequences, None, True)
    assert max(plan.lengths) > 0
    num_positions = 2 * (1 + max(plan.lengths))
    verifying = costs.target_seconds(2 + sum(plan.lengths)) + 0.5 + 0.01 * num_positions
    for _ in range(50):
        schedule.observe(plan, sequences, plan.lengths, plan.lengths, verifying)
    corrected = schedule._overhead.costs
    own = corrected.round_seconds + corrected.position_seconds * num_positions
    assert own == pytest.approx(0.5 + 0.01 * num_positions, rel=0.05)


def test_the_logits_of_the_stand_in_are_drawn_where_the_model_is(monkeypatch):
    drawn_on, randn = set(), torch.randn

    def draw(*args: object, **kwargs: object) -> torch.Tensor:
        drawn_on.add(kwargs.get("device"))
        return randn(*args, **kwargs)

    monkeypatch.setattr(torch, "randn", draw)
    place = torch.device("cpu", 0)
    facts = {"device": place, "dtype": torch.bfloat16, "vocab_size": 50, "hidden_size": 8}
    model = SimpleNamespace(**facts, eos_token_ids=(), close_call=0.0, tap=None)
    logits_BJV = InstantTarget(model, num_slots=3, num_positions=2)._logits_BJV
    assert drawn_on == {place}
    generator = torch.Generator().manual_seed(0)
    expected_BJV = torch.stack([4 * randn(2, 50, generator=generator) for _ in range(3)]).bfloat16()
    assert torch.equal(logits_BJV[..., 1:], expected_BJV[..., 1:])


def test_a_drafter_that_reads_features_gets_some_in_its_own_rounds_that_are_timed(models):
    """Features that a stand-in hands out are zeros, of every token from the first position on."""
    received: list[tuple[list[int], list[int], int]] = []

    def receive(slots, starts, lengths, tokens_N, features_NH):
        assert not features_NH.any()
        assert features_NH.shape == (len(tokens_N), 2 * models.target.hidden_size)
        received.append((list(starts), list(lengths), len(tokens_N)))

    class Reader(NoDrafter):
        tap = FeatureTap((0, 2), lambda stream_NX: stream_NX, receive)

    with_overhead(HERE, models.target, Reader(), num_slots=2, num_draft_tokens=3, rule=COUPLED)
    assert received == [([start] * 2, [1, 1], 2) for start in range(len(received))]
    assert len(received) == 7, "of the drafter's rounds, and of no others"


def test_a_draft_that_takes_one_forward_is_timed_as_one(monkeypatch):
    """What it takes beside its forward is added once, not for each of its tokens; a block of 2 drafts 2 tokens."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("decoding.engine.measured_costs.time.perf_counter", lambda: clock.now)

    class InOneForward(NoDrafter):
        def propose(self, rows: Rows) -> "object":  # type: ignore[override]
            clock.now += 3.0 + 0.25 * 2  # 2 tokens, at a quarter of a second each
            return point_masses([[0, 0] for _ in rows.sequences], torch.device("cpu"))

    facts = {"device": torch.device("cpu"), "dtype": torch.float32, "vocab_size": 9, "hidden_size": 8}
    target = SimpleNamespace(**facts, eos_token_ids=(), close_call=0.0, tap=None)
    known = CostTable(((1, 1.0),), ((1, 0.5), (2, 1.0)), block_tokens=2)
    costs = with_overhead(known, target, InOneForward(), num_slots=2, num_draft_tokens=4, rule=COUPLED)
    assert costs.drafting_seconds(2, 2) == costs.drafting_seconds(1, 2) == pytest.approx(3.5)
