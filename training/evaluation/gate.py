"""The gate: whether a draft is enough better than another one to take its place."""

from __future__ import annotations

from dataclasses import dataclass

from training.evaluation.kind_score import DraftScore


@dataclass(frozen=True)
class GateVerdict:
    """What the gate decided, and why, in one line."""

    passes: bool
    reason: str


def judge(before: DraftScore, after: DraftScore, gain: float = 0.05, loss: float = 0.01) -> GateVerdict:
    """Decide whether the second draft may replace the first.

    Its tokens a round must be better by `gain` (a share), and no kind's acceptance rate worse by more than `loss`.
    Raises ValueError if the two were not scored on the same rows.
    """
    rows_of = [
        {kind: (score.num_rows, score.num_tokens) for kind, score in each.by_kind.items()} for each in (before, after)
    ]
    if rows_of[0] != rows_of[1] or before.num_draft_tokens != after.num_draft_tokens:
        raise ValueError(
            f"{before.draft} and {after.draft} were scored on other rows, or with other draft lengths "
            f"({before.num_draft_tokens} and {after.num_draft_tokens} tokens); score both on the same"
        )
    old, new = before.all.tokens_a_round, after.all.tokens_a_round
    change = new / old - 1
    said = f"{new:.2f} tokens a round after {old:.2f} ({change:+.1%})"
    if change < gain:
        return GateVerdict(False, f"{said}, at least {gain:+.1%} wanted")
    worse = {
        kind: after.by_kind[kind].acceptance_rate - score.acceptance_rate for kind, score in before.by_kind.items()
    }
    worst = min(worse, key=lambda kind: worse[kind])
    if worse[worst] < -loss:
        rates = f"{before.by_kind[worst].acceptance_rate:.3f} to {after.by_kind[worst].acceptance_rate:.3f}"
        return GateVerdict(False, f"{said}, but the acceptance rate of {worst!r} falls from {rates}")
    return GateVerdict(True, f"{said}, and no kind is worse by more than {loss}")
