"""The rounds of samples: a text in pieces by who wrote them, and what all rounds together say of a draft."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from pipeline.counts import Sums
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import IncrementalDecoder, TextBehind

# accepted: drafted, and what the target wrote as well. rejected: drafted, and no part of the text. corrected: the
# target's own token in place of a rejected one. own: the target's own token behind a draft that was accepted whole, or
# without a draft.
Mark = Literal["accepted", "rejected", "corrected", "own"]


class Piece(NamedTuple):
    """Text of one round under one mark."""

    mark: Mark
    text: str
    round: int


@dataclass(frozen=True)
class RoundOfText:
    """A round: `accepted` and `own` are places in the sample's tokens; `own` is None where the text ended before it."""

    number: int
    accepted: range
    own: int | None
    rejected_token_ids: tuple[int, ...]

    @property
    def num_drafted(self) -> int:
        """Tokens of its draft."""
        return len(self.accepted) + len(self.rejected_token_ids)


def rounds_of(rounds: Sequence[Mapping[str, Any]], turn_lengths: Sequence[int]) -> Iterator[RoundOfText]:
    """Yield the rounds of a sample, as the column `draft_rounds` has them, with the places of their tokens.

    `turn_lengths` are the tokens of each of its generations, of which only a row that is a program has several. The
    last round of each may lack its own token.
    """
    ends = iter(turn_lengths)
    place, end = 0, next(ends, 0)
    for number, each in enumerate(rounds):
        while place >= end and (following := next(ends, None)) is not None:
            end += following
        accepted = range(place, place + each["num_accepted_tokens"])
        own = accepted.stop if accepted.stop < end else None
        yield RoundOfText(number, accepted, own, tuple(each["rejected_token_ids"]))
        place = accepted.stop + (own is not None)


def token_texts(codec: TextCodec, before: Sequence[int], token_ids: Sequence[int]) -> list[str]:
    """Return the text of each token, so that all of them joined are the text behind `before`; special ones are shown.

    A character that several tokens make is with the last of them.
    """
    decoder = IncrementalDecoder(codec.of_all_tokens, before)
    texts: list[str] = []
    for token_id in token_ids:
        earlier, own = decoder.push_one(token_id)
        if texts:
            texts[-1] += earlier
        texts.append(own if len(texts) else earlier + own)
    if texts:
        texts[-1] += decoder.flush()
    return texts


def marked_text(codec: TextCodec, prompt: str, token_ids: Sequence[int], rounds: Sequence[RoundOfText]) -> list[Piece]:
    """Return the pieces of a sample in the order in which they are read; a rejected one stands before its correction.

    `token_ids` may be the first ones of the sample; the rounds behind them are left out.
    """
    end_of_prompt = codec.end_of(prompt)
    texts, pieces = token_texts(codec, end_of_prompt, token_ids), []
    for each in rounds:
        if each.accepted.start >= len(token_ids):
            break
        accepted = "".join(texts[place] for place in each.accepted if place < len(texts))
        pieces.append(Piece("accepted", accepted, each.number))
        before = [*end_of_prompt, *token_ids[: each.accepted.stop]]
        rejected = TextBehind(codec.of_all_tokens, before).decode(each.rejected_token_ids)
        pieces.append(Piece("rejected", rejected, each.number))
        if each.own is not None and each.own < len(texts):
            mark: Mark = "corrected" if each.rejected_token_ids else "own"
            pieces.append(Piece(mark, texts[each.own], each.number))
    return [piece for piece in pieces if piece.text]


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
