"""The work of `dray diff`: which texts of two runs differ, from where on, and how much of each."""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from decoding.common_prefix import common_prefix
from decoding.drafters.known_texts import Prediction
from jobs.driver.stopping import Exit
from jobs.names import tell
from jobs.report_page.rounds import token_texts
from jobs.report_page.samples import codec_or_why_not
from pipeline.export.published_run import opened
from pipeline.inputs.values import shown_rows, visible
from pipeline.run.directory import RunDirectory
from pipeline.run.earlier_rows import EarlierRows
from pipeline.run.unit_rows import each_unit, refuse_unknown_columns
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec

_COLUMNS = ["id", "prompt", "text", "token_ids", "finish_reason"]
_WORD = re.compile(r"\s*\S+|\s+")
_AROUND = 40  # characters of a text that are shown from its first difference on
_MOST_ON_PAGE, _MOST_TOKENS = 200, 2000
What = Literal["same", "changed", "only in the first", "only in the second"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A sample of a row in both runs; None: it is not there, or failed."""

    name: str
    sample: int
    group: tuple[str, ...]  # the values of its columns
    first: Row | None
    second: Row | None
    in_words: bool  # since the tokens of the two runs are those of different tokenizers

    @property
    def what(self) -> What:
        """What became of it."""
        if self.first is None or self.second is None:
            return "only in the second" if self.first is None else "only in the first"
        names = ("text", "finish_reason") if self.in_words else ("text", "finish_reason", "token_ids")
        return "same" if all(self.first[name] == self.second[name] for name in names) else "changed"

    @cached_property
    def parts(self) -> tuple[list[Any], list[Any]]:
        """What is compared of both texts: tokens, or words."""
        rows = (self.first or {}, self.second or {})
        if self.in_words:
            return tuple(_WORD.findall(row.get("text") or "") for row in rows)  # type: ignore[return-value]
        return tuple(list(row.get("token_ids") or ()) for row in rows)  # type: ignore[return-value]

    @cached_property
    def num_same(self) -> int:
        """First tokens, or words, that both texts share."""
        return common_prefix(*self.parts)

    @cached_property
    def num_kept(self) -> int:
        """Tokens, or words, of the second text that follow from the first one, behind changes, too."""
        prediction = Prediction(self.parts[0])
        prediction.read(self.parts[1])
        return prediction.num_right

    def __str__(self) -> str:
        """Return it as a line: where the texts first differ, and how they go on there."""
        texts = [str((row or {}).get("text") or "") for row in (self.first, self.second)]
        at = common_prefix(*texts)
        was, now = (visible(text[at : at + _AROUND]) or "(the end)" for text in texts)
        unit = "word" if self.in_words else "token"
        share = 1 - self.num_kept / max(1, *map(len, self.parts))
        where = f"{visible(self.name)}, sample {self.sample}, {unit} {self.num_same}, character {at}"
        return f"{where}, {share:.0%} changed: {was!r} became {now!r}"


def pairs_of(first: RunDirectory, second: RunDirectory, by: Sequence[str] = ()) -> Iterator[Pair]:
    """Yield each sample of the second run's rows beside that of the first run, then those that are in the first alone.

    Rows are the same if their ids are, or else their places. Raises ValueError and OSError.
    """
    for run in (first, second):
        if run.has("scores"):
            raise ValueError(f"{run.location.name} has scores; name two runs whose rows are texts")
    refuse_unknown_columns(second, by)
    earlier, seen = EarlierRows(first, _COLUMNS), set[int]()
    in_words = first.run["identity"].get("tokenizer") != second.run["identity"].get("tokenizer")
    committed = second.committed_unit_ids()
    units = [unit for unit in second.units() if unit.unit_id in committed]
    for unit, rows in zip(units, each_unit(second, units, ["row_id", "sample", *_COLUMNS, *by]), strict=True):
        ids = {row["row_id"]: row["id"] for row in rows.errors.to_pylist()}
        samples = defaultdict[int, dict[int, tuple[Row | None, tuple[str, ...]]]](dict)
        for row, group in zip(_rows(rows.generations), shown_rows(rows.generations, by), strict=True):
            samples[row["row_id"]][row["sample"]] = row, group
            ids[row["row_id"]] = row["id"]
        for row_id, user_id in sorted(ids.items()):
            number = unit.row_start + unit.row_index(row_id)
            old_id, now = earlier.find(user_id, unit.file, number), samples[row_id]
            before = {row["sample"]: row for row in earlier.samples(old_id)}
            seen.update([] if old_id is None else [old_id])
            for sample in sorted(before.keys() | now.keys()):
                row, group = now.get(sample, (None, ("",) * len(by)))
                yield Pair(unit.row_name(row_id, user_id), sample, group, before.get(sample), row, in_words)
    for unit in first.units():
        for row_id in sorted({unit.row_id(index) for index in range(unit.num_rows)} - seen):
            for row in earlier.samples(row_id):
                name, group = unit.row_name(row_id, row["id"]), ("",) * len(by)
                yield Pair(name, row["sample"], group, row, None, in_words)


def _rows(table: pa.Table) -> list[Row]:
    return table.select(["row_id", "sample", *_COLUMNS]).to_pylist()


def difference(options: argparse.Namespace) -> int:
    """Print how two runs differ; return 0 if they do not, 1 if they do, 2 if they cannot be compared."""
    try:
        with opened(options.first) as first, opened(options.second) as second:
            return _difference(first, second, options)
    except (ValueError, OSError, pa.ArrowException) as error:
        tell(f"error: {error}")
        return Exit.BAD_CONFIGURATION


def _difference(first: RunDirectory, second: RunDirectory, options: argparse.Namespace) -> int:
    by = [name.strip() for name in options.by.split(",") if name.strip()]
    found = Counter[tuple[tuple[str, ...], What]]()
    tokens = Counter[tuple[tuple[str, ...], str]]()
    changed: list[Pair] = []
    for pair in pairs_of(first, second, by):
        found[pair.group, pair.what] += 1
        tokens[pair.group, "kept"] += pair.num_kept
        tokens[pair.group, "all"] += max(map(len, pair.parts))
        if pair.what == "changed" and len(changed) < max(options.rows, _MOST_ON_PAGE):
            changed.append(pair)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(_table(first, second, by, found, tokens))
    for pair in changed[: options.rows]:
        console.print(Text(str(pair)))
    counts = _summed(found)
    if counts["changed"] > options.rows:
        print(f"and {counts['changed'] - options.rows:,} more texts that changed; --rows N lists more")
    if options.html is not None:
        from jobs.report_page.page import rendered  # here, since it draws charts, which a table does not need

        codecs = [codec_or_why_not(run)[0] for run in (first, second)]
        shown = [(pair, *marked(pair, codecs)) for pair in changed[:_MOST_ON_PAGE]]
        names = {"first": first.location.name, "second": second.location.name, "title": "What changed"}
        place = Location.parse(options.html)
        rendered("diff.html", place, pairs=shown, counts=counts, **names)
        print(place.name)
    return Exit.COMPLETE if counts["same"] == counts.total() else Exit.FAILED


def marked(pair: Pair, codecs: Sequence[TextCodec | None]) -> tuple[list[tuple[bool, str]], list[tuple[bool, str]]]:
    """Return both texts in pieces, each with whether it is changed."""
    parts: list[list[Any]] = [part[:_MOST_TOKENS] for part in pair.parts]
    texts = [
        part if pair.in_words or codec is None else token_texts(codec, codec.end_of(row["prompt"] or ""), part)
        for part, codec, row in zip(parts, codecs, (pair.first or {}, pair.second or {}), strict=True)
    ]
    pieces: tuple[list[tuple[bool, str]], list[tuple[bool, str]]] = ([], [])
    for tag, *places in SequenceMatcher[Any](None, parts[0], parts[1], autojunk=False).get_opcodes():
        for own, text, (begin, end) in zip(pieces, texts, (places[:2], places[2:]), strict=True):
            if begin < end:
                own.append((tag != "equal", "".join(map(str, text[begin:end]))))
    return pieces


def _summed(found: Counter[tuple[tuple[str, ...], What]]) -> Counter[What]:
    sums = Counter[What]()
    for (_, what), number in found.items():
        sums[what] += number
    return sums


def _table(
    first: RunDirectory,
    second: RunDirectory,
    by: Sequence[str],
    found: Counter[tuple[tuple[str, ...], What]],
    tokens: Counter[tuple[tuple[str, ...], str]],
) -> Table:
    """Return the texts by what became of them, in groups and in total."""
    kinds: tuple[What, ...] = ("same", "changed", "only in the first", "only in the second")
    table = Table(
        *by, "texts", *kinds, "changed of all tokens", title=f"{first.location.name} and {second.location.name}"
    )
    groups = sorted({group for group, _ in found}) if by else []
    for group in [*groups, None]:
        of_group = [key for key in found if group in (None, key[0])]
        numbers = [sum(found[key] for key in of_group if key[1] == kind) for kind in kinds]
        kept, whole = (
            sum(n for (own, name), n in tokens.items() if name == what and group in (None, own))
            for what in ("kept", "all")
        )
        cells = [f"{sum(numbers):,}", *(f"{number:,}" for number in numbers), f"{1 - kept / max(1, whole):.1%}"]
        labels = [visible(value) for value in group] if group is not None else ["all", *[""] * len(by)][: len(by)]
        table.add_row(*map(Text, [*labels, *cells]))
    return table
