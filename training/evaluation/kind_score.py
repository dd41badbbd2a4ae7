"""KindScore and DraftScore: how well a draft foretells its target's texts, in counts that add; and a gate of drafts."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from pipeline.counts import Counts, Sums


def replay(
    output_token_ids: Sequence[int],
    drafted_KN: Sequence[Sequence[int]],
    max_tokens: int,
    stop_ids: Set[int],
    max_drafted_len: int,
    first: int = 0,
    close_calls: Set[int] = frozenset(),
) -> Counts:
    """Return the counts of the rounds that would have written this output with drafts of K tokens.

    Under shared noise a drafted token is accepted if and only if it is the token that stands there. As long as all
    before were accepted, the tokens before it are those of the text. So from any place of the text it is known how many
    tokens a draft of K would have had accepted, and with that where the next round begins.

    Where rounding could decide a pick of the target, the engine ends the round and scores the row again alone, which
    costs the tokens behind it; rounds end there here, too.

    What the tokens behind the first rejected one would have been is not known. One of them may be an end token, behind
    which a live run drafts no more: its number of drafted tokens is then smaller. All other counts are those of a run.

    `drafted_KN[k][s]` is what a round that begins at output token s drafts for token s + k, given the text before that;
    what would lie behind the text's end is not looked at. A row may have `max_tokens` output tokens, may draft tokens
    that lie before output token `max_drafted_len`, and drafts nothing in rounds before output token `first`. At each of
    the `close_calls` (places in the output) a round ends.
    """
    num_output, num_steps = len(output_token_ids), len(drafted_KN)
    num_rounds = num_drafted = 0
    rounds_by_accepted = [0] * (num_steps + 1)
    start = 0
    while start < num_output:
        # A round adds one token to what it accepts, so a draft is no longer than what the row may keep less one.
        limit = max(0, min(num_steps, max_tokens - start - 1, max_drafted_len - start)) if start >= first else 0
        accepted, drafted = 0, limit
        for step in range(min(limit, num_output - start)):
            token, place = drafted_KN[step][start], start + step
            if token in stop_ids:  # what is drafted after an end token cannot be kept
                drafted = step + 1
            if token != output_token_ids[place] or place in close_calls:
                break
            accepted += 1
        num_rounds += 1
        num_drafted += drafted
        rounds_by_accepted[accepted] += 1
        start += accepted + 1
    per_position = list(accumulate(reversed(rounds_by_accepted[1:])))[::-1]
    num_accepted = sum(per_position)
    return Counts(
        num_rounds=num_rounds,
        num_draft_tokens=num_drafted,
        num_accepted_tokens=num_accepted,
        accepted_per_position=tuple(per_position),
    )


_OF_ROUNDS = ("num_rounds", "num_draft_tokens", "num_accepted_tokens")
_RATES = ("agreement", "overlap", "match_rate", "acceptance_rate", "tokens_a_round", "reproduced")


@dataclass(frozen=True)
class KindScore(Sums):
    """What was counted over the output tokens of some rows; the rates are made of it."""

    num_rows: int = 0
    num_tokens: int = 0
    num_agreed: int = 0  # tokens at which target and draft find the same token likeliest
    sum_overlap: float = 0.0  # over tokens: the probability mass that both laws share, 1 - TV
    num_matched: int = 0  # tokens that the draft picks under the noise of the target's own pick
    num_known: int = 0  # tokens at which the target's pick is known: rows with a noise key, and greedy ones
    num_reproduced: int = 0  # of them, those that are the target's pick
    rounds: Counts = field(default_factory=Counts)  # of these alone the fields are set

    @property
    def agreement(self) -> float:
        """Share of tokens at which both find the same token likeliest, given the text before it."""
        return self.num_agreed / max(self.num_tokens, 1)

    @property
    def overlap(self) -> float:
        """Mean of 1 - TV between the laws that are sampled: the acceptance of a token under `rejection`."""
        return self.sum_overlap / max(self.num_tokens, 1)

    @property
    def match_rate(self) -> float:
        """Share of tokens that the draft picks, given the text before it: the acceptance of a first token."""
        return self.num_matched / max(self.num_tokens, 1)

    @property
    def reproduced(self) -> float | None:
        """Share of tokens that the target picks again (1 in float32); None if no row says with which noise."""
        return self.num_reproduced / self.num_known if self.num_known else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of rounds in which the token at each draft position is accepted."""
        return tuple(count / max(self.rounds.num_rounds, 1) for count in self.rounds.accepted_per_position)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens."""
        return self.rounds.acceptance_rate or 0.0

    @property
    def tokens_a_round(self) -> float:
        """Mean acceptance length: 1 + accepted tokens / rounds."""
        return self.rounds.mean_acceptance_length or 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return counts and rates for JSON."""
        return {
            "num_rows": self.num_rows,
            "num_tokens": self.num_tokens,
            **{name: getattr(self.rounds, name) for name in _OF_ROUNDS},
            "accepted_per_position": list(self.rounds.accepted_per_position),
            **{name: getattr(self, name) for name in _RATES},
        }


@dataclass(frozen=True)
class DraftScore:
    """The score of one draft, by kind of text."""

    draft: str
    num_draft_tokens: int  # that a round drafts at most
    by_kind: dict[str, KindScore]

    @property
    def all(self) -> KindScore:
        """The score over the rows of all kinds."""
        return sum(self.by_kind.values(), KindScore())

    def as_dict(self) -> dict[str, Any]:
        """Return the score for JSON."""
        return {
            "draft": self.draft,
            "num_draft_tokens": self.num_draft_tokens,
            "all": self.all.as_dict(),
            "by_kind": {kind: score.as_dict() for kind, score in self.by_kind.items()},
        }


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
