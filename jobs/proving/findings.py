"""What Dray's engine writes in each setting, in this process, compared token by token."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import cast

from decoding.drafters import NEED_A_MODEL, DrafterName
from decoding.engine.engine import Engine
from decoding.engine.load import Parts
from decoding.engine.options import EngineOptions
from decoding.network.reference import Reference
from decoding.sequence import Sequence
from jobs.proving.comparison import Finding, Setting, compare, in_order


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
        engine = Engine.over(replace(parts, drafter_name=name, draft=draft), setting.options(options))
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
