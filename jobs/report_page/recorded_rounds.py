"""RecordedRounds: what the rounds that were recorded say about a draft: its lengths, its acceptance, its prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from jobs.report_page.marked_text import RoundOfText, rounds_of
from pipeline.counts import Sums


@dataclass
class RecordedRounds(Sums):
    """Rounds by (tokens drafted, tokens accepted), and how many drafted tokens the target has judged.

    A token is judged if all before it in its draft were accepted. One behind the end of a text is not judged.
    """

    num_rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_judged: int = 0
    num_samples: int = 0

    def add_sample(self, rounds: Iterable[RoundOfText]) -> None:
        """Count the rounds of one sample."""
        self.num_samples += 1
        for each in rounds:
            self.num_rounds[each.num_drafted, len(each.accepted)] += 1
            has_judged_one_more = each.rejected_token_ids and each.own is not None  # else the text had ended
            self.num_judged += len(each.accepted) + bool(has_judged_one_more)

    @property
    def total(self) -> int:
        """Number of rounds."""
        return self.num_rounds.total()

    @property
    def acceptance(self) -> float | None:
        """Share of the judged tokens that were accepted, the paper's alpha; None if none was judged."""
        accepted = sum(taken * number for (_, taken), number in self.num_rounds.items())
        return accepted / self.num_judged if self.num_judged else None

    @property
    def mean_length(self) -> float | None:
        """Mean acceptance length of these rounds, 1 + accepted / rounds; None without a round."""
        accepted = sum(taken * number for (_, taken), number in self.num_rounds.items())
        return 1 + accepted / self.total if self.total else None

    @property
    def predicted_length(self) -> float | None:
        """Mean acceptance length if each token were accepted with the same chance, whatever came before it."""
        alpha = self.acceptance
        if alpha is None:
            return None
        lengths = (expected_length(alpha, drafted) * number for (drafted, _), number in self.num_rounds.items())
        return sum(lengths) / self.total

    def by_drafted(self) -> Iterator[tuple[int, int, int]]:
        """Yield (tokens drafted, rounds with that draft length, those of them that accepted all), ascending."""
        for drafted in range(max((drafted for drafted, _ in self.num_rounds), default=-1) + 1):
            rounds = {taken: number for (length, taken), number in self.num_rounds.items() if length == drafted}
            yield drafted, sum(rounds.values()), rounds.get(drafted, 0)


def count_rounds(generations: pa.Table) -> RecordedRounds:
    """Count the rounds in a table of generations, as far as they were recorded."""
    found, names = RecordedRounds(), generations.column_names
    if "draft_rounds" in names:
        wanted = [name for name in ("draft_rounds", "num_output_tokens", "turns") if name in names]
        for row in generations.select(wanted).to_pylist():
            if row["draft_rounds"] is not None:
                turns = [row] if row.get("turns") is None else row["turns"]
                found.add_sample(rounds_of(row["draft_rounds"], [turn["num_output_tokens"] for turn in turns]))
    return found


def expected_length(alpha: float, num_drafted: int) -> float:
    """Return the expected tokens of a round with a draft of this length, by equation 1 of arXiv 2211.17192."""
    return num_drafted + 1.0 if alpha >= 1 else (1 - alpha ** (num_drafted + 1)) / (1 - alpha)
