"""Proof: the same prompts written by the target alone and by the engine in many settings, compared token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from actors.engine.translation import encode_row
from actors.settings import GeneratorSettings
from decoding.drafters import DRAFTERS, NEED_A_MODEL, DrafterName
from decoding.engine.engine import Engine
from decoding.engine.load import Parts
from decoding.engine.options import DraftLength, EngineOptions
from decoding.network.reference import Reference
from decoding.sequence import Sequence
from jobs.config.prove import ProveSettings
from pipeline.inputs.rows import InputRow
from pipeline.text.codec import TextCodec

_SHUFFLE_SEED = 0
PlacedInput = tuple[InputRow, int]  # a row and its place in the whole input, which decides its noise


@dataclass(frozen=True)
class Setting:
    """How an engine writes the prompts."""

    drafter: DrafterName
    draft_length: DraftLength
    num_speculative_tokens: int
    num_slots: int
    is_shuffled: bool
    where: str = "one process"  # where the engine's models run

    def options(self, common: EngineOptions) -> EngineOptions:
        """Return the options of such an engine."""
        return replace(
            common,
            drafter=self.drafter,
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


def settings_to_try(prove: ProveSettings, options: EngineOptions, has_draft: bool) -> list[Setting]:
    """Return every combination of drafter, draft length and slots; every second one gets the rows in another order.

    Raises ValueError if a drafter needs a draft model and there is none.
    """
    drafters = prove.drafters or tuple(name for name in DRAFTERS if has_draft or name not in NEED_A_MODEL)
    for name in drafters:
        replace(options, drafter=name).pick_drafter("" if has_draft else None)
    lengths: list[tuple[DraftLength, int]] = [("fixed", length) for length in prove.draft_lengths]
    lengths.append(("adaptive", options.num_speculative_tokens))
    found: list[Setting] = []
    for drafter in drafters:
        for kind, length in lengths if drafter != "none" else lengths[:1]:
            for num_slots in prove.num_slots:
                found.append(Setting(drafter, kind, length, num_slots, is_shuffled=len(found) % 2 == 1))
    return found


def findings(
    parts: Parts,
    options: EngineOptions,
    settings: Iterable[Setting],
    make_rows: Callable[[], list[Sequence]],
    expected: Seq[Seq[int]],
    reference: Reference,
) -> Iterator[Finding]:
    """Yield what each setting writes, beside the `expected` output tokens of each row that `make_rows` makes."""
    for setting in settings:
        rows = make_rows()
        order = list(rows)
        if setting.is_shuffled:
            random.Random(_SHUFFLE_SEED).shuffle(order)
        draft = parts.draft if setting.drafter in NEED_A_MODEL else None
        engine = Engine.over(replace(parts, drafter_name=setting.drafter, draft=draft), setting.options(options))
        list(engine.stream(order))
        yield compare(setting, rows, expected, make_rows, reference)


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
    make_rows: Callable[[], list[Sequence]],
    reference: Reference,
) -> Finding:
    """Return how the rows that a setting wrote differ from the `expected` output tokens of each."""
    for row in rows:
        _refuse_failed(row)
    num_tokens, differences = 0, []
    for index, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        position = first_difference(row.output_token_ids, wanted)
        num_tokens += len(wanted) if position is None else position
        if position is not None:
            differences.append(_described(index, position, row.output_token_ids, wanted, make_rows()[index], reference))
    return Finding(
        setting,
        num_tokens,
        sum(row.num_draft_tokens for row in rows),
        sum(row.num_accepted_tokens for row in rows),
        tuple(differences),
    )


def _refuse_failed(row: Sequence) -> None:
    if row.finish_reason == "error":
        raise ValueError(f"a prompt cannot be written: {row.error}")


def first_difference(found: Seq[int], expected: Seq[int]) -> int | None:
    """Return the first position at which two texts differ, or None; one that goes on differs where the other ends."""
    for position, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return position
    return None if len(found) == len(expected) else min(len(found), len(expected))


def _described(
    index: int, position: int, found: Seq[int], expected: Seq[int], fresh: Sequence, reference: Reference
) -> Difference:
    wanted, written = (text[position] if position < len(text) else None for text in (expected, found))
    if wanted is None or written is None:
        return Difference(index, position, wanted, written)
    if position:
        fresh.commit(expected[:position], num_draft_tokens=0, eos_token_ids=frozenset())
    return Difference(index, position, wanted, written, reference.margin(fresh))
