"""A sample's text in pieces: what the draft wrote, what the target wrote, and what the draft had proposed instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
