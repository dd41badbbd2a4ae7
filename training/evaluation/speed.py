"""The time of a round with a draft and of one without, as the engine measures them, and the speed-up that follows."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.engine.engine import Engine
from decoding.engine.options import EngineOptions
from decoding.pace.cost_table import CostTable
from training.evaluation.pair import Pair


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of a round in which all slots write."""

    plain: float  # without a draft
    drafted: float  # with drafts of the whole length

    def speed_up(self, tokens_a_round: float) -> float:
        """Return how many times as fast rounds with this mean acceptance length write as plain decoding."""
        return tokens_a_round * self.plain / self.drafted


def measure_rounds(pair: Pair, num_draft_tokens: int, num_slots: int) -> RoundSeconds:
    """Measure the costs of a pair as an engine does when it is loaded; what is in the caches is lost."""
    options = EngineOptions(num_speculative_tokens=num_draft_tokens, num_slots=num_slots)
    engine = Engine.over(pair.parts, options)
    try:
        costs = engine.lanes[0].schedule.costs
        assert costs is not None, "drafts adapt by measured costs"
        return round_seconds(costs, num_draft_tokens, num_slots)
    finally:
        for lane in engine.lanes:
            lane.close()
        pair.target.hand_out(None)


def round_seconds(costs: CostTable, num_draft_tokens: int, num_rows: int) -> RoundSeconds:
    """Return what rounds of this many rows take by a cost table."""

    def seconds(num_drafted: int) -> float:
        num_positions = num_rows * (1 + 2 * num_drafted)  # each drafted token is picked twice
        own = costs.round_seconds + num_positions * costs.position_seconds
        return own + costs.target_seconds(num_rows * (1 + num_drafted)) + costs.drafting_seconds(num_drafted, num_rows)

    return RoundSeconds(seconds(0), seconds(num_draft_tokens))
