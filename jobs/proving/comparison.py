"""What a proof compares: the settings of an engine, the tokens that each wrote, and where they differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import cast

from actors.engine.translation import encode_row
from actors.settings import GeneratorSettings
from decoding.drafters import DRAFTERS, NEED_A_MODEL, DrafterName
from decoding.engine.options import DraftLength, EngineOptions
from decoding.sequence import Sequence
from jobs.config.prove import ProveSettings
from pipeline.errors import RowError
from pipeline.inputs.rows import InputRow
from pipeline.text.codec import TextCodec

_SHUFFLE_SEED = 0
PlacedInput = tuple[InputRow, int]  # a row and its place in the whole input, which decides its noise


@dataclass(frozen=True)
class Setting:
    """How an engine writes the prompts."""

    drafter: str  # a DrafterName, or a method of vLLM's
    draft_length: DraftLength
    num_speculative_tokens: int
    num_slots: int
    is_shuffled: bool
    where: str = "one process"  # where the engine's models run

    def options(self, common: EngineOptions) -> EngineOptions:
        """Return the options of such an engine."""
        return replace(
            common,
            drafter=cast("DrafterName", self.drafter),
            draft_length=self.draft_length,
            num_speculative_tokens=self.num_speculative_tokens,
            num_slots=self.num_slots,
        )


@dataclass(frozen=True)
class Difference:
    """The first token of a row that is not the reference's; an end counts as a token, None."""

    row: int
    position: int  # in the output
    expected: int | None
    found: int | None
    margin: float | None = None  # of the two best candidates there, in logits; None if one of the texts ended


@dataclass(frozen=True)
class Finding:
    """What one setting wrote."""

    setting: Setting
    num_tokens: int  # compared with the reference's: those up to each row's first difference
    num_draft_tokens: int
    num_accepted_tokens: int
    differences: tuple[Difference, ...]  # at most one of each row


def settings_to_try(prove: ProveSettings, options: EngineOptions, draft: str | None) -> list[Setting]:
    """Return every combination of drafter, draft length and slots; every second one gets the rows in another order.

    Drafters are those that can use the draft. Raises ValueError if a drafter needs a draft and there is none.
    """
    of_draft = () if draft is None else (replace(options, drafter=None).pick_drafter(draft), "hybrid")
    drafters = prove.drafters or tuple(name for name in DRAFTERS if name in of_draft or name not in NEED_A_MODEL)
    for name in drafters:
        replace(options, drafter=name).pick_drafter(draft)
    lengths: list[tuple[DraftLength, int]] = [("fixed", length) for length in prove.draft_lengths]
    lengths.append(("adaptive", options.num_speculative_tokens))
    found: list[Setting] = []
    for drafter in drafters:
        for kind, length in lengths if drafter != "none" else lengths[:1]:
            for num_slots in prove.num_slots:
                found.append(Setting(drafter, kind, length, num_slots, is_shuffled=len(found) % 2 == 1))
    return found


def in_order(rows: Seq[Sequence], is_shuffled: bool) -> list[Sequence]:
    """Return the rows as they are, or in another order, which is always the same."""
    order = list(rows)
    if is_shuffled:
        random.Random(_SHUFFLE_SEED).shuffle(order)
    return order


def problem_with_row(
    placed: PlacedInput, codec: TextCodec, settings: GeneratorSettings, problem_with: Callable[[Sequence], str | None]
) -> str | None:
    """Return why this row of the input cannot be written, by `problem_with` of its sequences; None if it can."""
    try:
        sequences = encode_row(*placed, codec, settings).sequences
    except RowError as error:
        return str(error)
    return next(filter(None, map(problem_with, sequences)), None)


def rows_of(
    inputs: Iterable[PlacedInput], codec: TextCodec, settings: GeneratorSettings, max_model_len: int
) -> list[Sequence]:
    """Return the sequences that a run would write for these rows of its input."""
    rows = [row for each, ordinal in inputs for row in encode_row(each, ordinal, codec, settings).sequences]
    for row in rows:
        row.max_tokens = min(row.max_tokens, max_model_len - len(row.prompt_token_ids))
    return rows


def compare(
    setting: Setting,
    rows: Seq[Sequence],
    expected: Seq[Seq[int]],
    margin: Callable[[int, int], float] | None = None,
) -> Finding:
    """Return how the rows that a setting wrote differ from the `expected` output tokens of each.

    `margin` returns how near a tie the position of a row is, in logits.
    """
    refuse_failed(rows)
    num_tokens, differences = 0, []
    for index, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        position = first_difference(row.output_token_ids, wanted)
        num_tokens += len(wanted) if position is None else position
        if position is not None:
            written, right = (
                text[position] if position < len(text) else None for text in (row.output_token_ids, wanted)
            )
            near = None if margin is None or None in (written, right) else margin(index, position)
            differences.append(Difference(index, position, right, written, near))
    return Finding(
        setting,
        num_tokens,
        sum(row.num_draft_tokens for row in rows),
        sum(row.num_accepted_tokens for row in rows),
        tuple(differences),
    )


def refuse_failed(rows: Iterable[Sequence]) -> None:
    """Raise ValueError if a row could not be written."""
    for row in rows:
        if row.finish_reason == "error":
            raise ValueError(f"a prompt cannot be written: {row.error}")


def first_difference(found: Seq[int], expected: Seq[int]) -> int | None:
    """Return the first position at which two texts differ, or None; one that goes on differs where the other ends."""
    for position, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return position
    return None if len(found) == len(expected) else min(len(found), len(expected))
