"""What a proof compares: the settings of an engine, the tokens that each writes here, and where they differ."""

import random
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import cast

from actors.engine.translation import encode_row
from actors.settings import GeneratorSettings
from decoding.choices import DRAFTERS, NEED_A_MODEL, DrafterName
from decoding.engine.engine import Engine
from decoding.engine.load import Parts
from decoding.engine.options import DraftLength, EngineOptions
from decoding.network.reference import Reference
from decoding.sequence import Sequence, TokenLogprobs
from jobs.config.prove import ProveSettings
from jobs.proving.asked import Codecs, PlacedInput
from pipeline.errors import RowError

_SHUFFLE_SEED = 0
_SAME_LOGPROB = 0.01  # as near as rounding brings the log-probabilities of the same token


@dataclass(frozen=True)
class Setting:
    """How an engine writes the prompts."""

    drafter: str  # a DrafterName, or a method of vLLM's
    draft_length: DraftLength
    num_speculative_tokens: int
    num_slots: int
    is_shuffled: bool
    where: str = "one process"  # where the engine's models run


@dataclass(frozen=True)
class Difference:
    """The first place of a row that is not the reference's: a token, a log-probability, or how the text ends."""

    row: int
    asked: str  # of the row, besides its prompt (`asked.CASES`)
    position: int  # in the output
    expected: str
    found: str
    margin: float | None = None  # of the two best candidates there, in logits; None unless two tokens differ


@dataclass(frozen=True)
class Finding:
    """What one setting wrote."""

    setting: Setting
    num_tokens: int  # compared with the reference's: those up to each row's first difference
    num_draft_tokens: int
    num_accepted_tokens: int
    differences: tuple[Difference, ...]  # at most one of each row
    asked: str = "nothing"  # of the rows: a value of prove.asked


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


def some_of(settings: Seq[Setting], number: int) -> list[Setting]:
    """Return about a third of the settings, in which each drafter has each draft length and each number of slots.

    Another `number` picks others; as many numbers in turn as there are lengths or slots pick all. Settings whose models
    are elsewhere are always among them.
    """
    drafters = list(dict.fromkeys(each.drafter for each in settings))
    ways = list(dict.fromkeys((each.draft_length, each.num_speculative_tokens) for each in settings))
    slots = list(dict.fromkeys(each.num_slots for each in settings))
    found = []
    for each in settings:
        way = ways.index((each.draft_length, each.num_speculative_tokens))
        place = way + slots.index(each.num_slots) + drafters.index(each.drafter) + number
        if each.where != Setting.where or place % max(len(ways), len(slots)) == 0:
            found.append(each)
    return found


def in_order(rows: Seq[Sequence], is_shuffled: bool) -> list[Sequence]:
    """Return the rows as they are, or in another order, which is always the same."""
    order = list(rows)
    if is_shuffled:
        random.Random(_SHUFFLE_SEED).shuffle(order)
    return order


def problem_with_row(
    placed: PlacedInput, codecs: Codecs, settings: GeneratorSettings, problem_with: Callable[[Sequence], str | None]
) -> str | None:
    """Return why this row of the input cannot be written, by `problem_with` of its sequences; None if it can."""
    try:
        sequences = encode_row(placed.row, placed.ordinal, codecs.of(placed), settings).sequences
    except RowError as error:
        return str(error)
    return next(filter(None, map(problem_with, sequences)), None)


def rows_of(
    inputs: Iterable[PlacedInput], codecs: Codecs, settings: GeneratorSettings, max_model_len: int
) -> list[Sequence]:
    """Return the sequences that a run would write for these rows of its input; their tags say what is asked of them."""
    rows = []
    for placed in inputs:
        for row in encode_row(placed.row, placed.ordinal, codecs.of(placed), settings).sequences:
            row.max_tokens = min(row.max_tokens, max_model_len - len(row.prompt_token_ids))
            row.tag = placed.asked
            rows.append(row)
    return rows


def compare(
    setting: Setting, rows: Seq[Sequence], expected: Seq[Sequence], margin: Callable[[int, int], float] | None = None
) -> Finding:
    """Return how the rows that a setting wrote differ from the `expected` ones.

    `margin` returns how near a tie the position of a row is, in logits.
    """
    num_tokens, differences = 0, []
    for index, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
        difference = _difference(index, row, wanted)
        num_tokens += len(wanted.output_token_ids) if difference is None else difference.position
        if difference is None:
            continue
        tokens = [each.output_token_ids[difference.position :][:1] for each in (row, wanted)]
        if margin is not None and all(tokens) and tokens[0] != tokens[1]:
            difference = replace(difference, margin=margin(index, difference.position))
        differences.append(difference)
    return Finding(
        setting,
        num_tokens,
        sum(row.num_draft_tokens for row in rows),
        sum(row.num_accepted_tokens for row in rows),
        tuple(differences),
    )


def _difference(index: int, row: Sequence, wanted: Sequence) -> Difference | None:
    """Return the first place at which a row has another token, log-probability or end than is wanted."""
    places = [[*map(str, each.output_token_ids), _end_of(each)] for each in (row, wanted)]
    position = first_difference(*places)
    if position is not None:
        found, right = (place[position] for place in places)
    else:
        position = _first_other_logprob(row.logprobs, wanted.logprobs)
        if position is None:
            return None
        found, right = (f"log-probabilities {each.logprobs[position:][:1]}" for each in (row, wanted))
    return Difference(index, str(row.tag), position, right, found)


def _end_of(row: Sequence) -> str:
    if row.finish_reason == "error":
        return f"the error {row.error!r}"
    return f"the end ({row.finish_reason})" if row.stop_reason is None else f"the end at {row.stop_reason!r}"


def _first_other_logprob(found: Seq[TokenLogprobs], expected: Seq[TokenLogprobs]) -> int | None:
    """Return the first position whose log-probabilities are not the same up to rounding, or None."""
    for position, each in enumerate(zip_longest(found, expected)):
        one, other = ([] if at is None else [at.logprob, *(logprob for _, logprob in at.top)] for at in each)
        if len(one) != len(other) or any(abs(a - b) > _SAME_LOGPROB for a, b in zip(one, other, strict=True)):
            return position
    return None


def first_difference(found: Seq[object], expected: Seq[object]) -> int | None:
    """Return the first position at which two texts differ, or None; one that goes on differs where the other ends."""
    places = enumerate(zip_longest(found, expected, fillvalue=object()))
    return next((position for position, (one, other) in places if one != other), None)


def findings(
    parts: Parts,
    options: EngineOptions,
    settings: Iterable[Setting],
    make_rows: Callable[[], list[Sequence]],
    expected: Seq[Sequence],
    reference: Reference,
) -> Iterator[Finding]:
    """Yield what each setting writes, beside the `expected` ones of the rows that `make_rows` makes."""
    for setting in settings:
        rows, name = make_rows(), cast("DrafterName", setting.drafter)
        draft = parts.draft if name in NEED_A_MODEL else None
        own = replace(
            options,
            drafter=name,
            draft_length=setting.draft_length,
            num_speculative_tokens=setting.num_speculative_tokens,
            num_slots=setting.num_slots,
        )
        engine = Engine.over(replace(parts, drafter_name=name, draft=draft), own)
        list(engine.stream(in_order(rows, setting.is_shuffled)))
        yield compare(setting, rows, expected, margins(make_rows, expected, reference))


def margins(
    make_rows: Callable[[], list[Sequence]], expected: Seq[Sequence], reference: Reference
) -> Callable[[int, int], float]:
    """Return the function that says how much better than the second best the token at a position of a row is."""

    def margin(index: int, position: int) -> float:
        row = make_rows()[index]
        if position:
            row.commit(expected[index].output_token_ids[:position], num_draft_tokens=0, eos_token_ids=frozenset())
        return reference.margin(row)

    return margin
