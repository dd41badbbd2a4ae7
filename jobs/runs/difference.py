"""The work of `dray diff`: which texts of two runs differ, from where on, and how much of each."""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Literal, get_args

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from decoding.common_prefix import common_prefix
from decoding.drafters.lookups.prediction import Prediction
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

_COMPARED = ("token_ids", "text", "finish_reason")
_COLUMNS = ["row_id", "sample", "id", "prompt", *_COMPARED]
_AROUND = 40  # characters of a text that are shown from its first difference on
_MOST_ON_PAGE, _MOST_TOKENS = 200, 2000
What = Literal["same", "changed", "only in the first", "only in the second"]
Pieces = list[tuple[bool, str]]  # a text in pieces, each with whether it is changed


@dataclass(frozen=True)
class Pair:
    """A sample of a row in both runs; None: it is not there, or failed."""

    name: str
    sample: int
    group: tuple[str, ...]  # the values of its columns
    first: dict[str, Any] | None
    second: dict[str, Any] | None

    @property
    def what(self) -> What:
        """What became of it."""
        if self.first is None or self.second is None:
            return "only in the second" if self.first is None else "only in the first"
        return "same" if all(self.first[name] == self.second[name] for name in _COMPARED) else "changed"

    @cached_property
    def tokens(self) -> list[list[int]]:
        """The token ids of both texts."""
        return [list((row or {}).get("token_ids") or ()) for row in (self.first, self.second)]

    @cached_property
    def num_kept(self) -> int:
        """Tokens of the second text that follow from the first one, behind changes, too."""
        prediction = Prediction(self.tokens[0])
        prediction.read(self.tokens[1])
        return prediction.num_right

    @property
    def num_same(self) -> int:
        """First tokens that both texts share."""
        return common_prefix(*self.tokens)

    def __str__(self) -> str:
        """Return it as a line: where the texts first differ, and how they go on there."""
        texts = [str((row or {}).get("text") or "") for row in (self.first, self.second)]
        at = common_prefix(*texts)
        was, now = (visible(text[at : at + _AROUND]) or "(the end)" for text in texts)
        share = 1 - self.num_kept / max(1, *map(len, self.tokens))
        where = f"{visible(self.name)}, sample {self.sample}, token {self.num_same}, character {at}"
        return f"{where}, {share:.0%} changed: {was!r} became {now!r}"


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
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)  # of each group, and of all
    changed: list[Pair] = []
    for pair in pairs_of(first, second, by):
        for group in {pair.group, ("all", *by)}:
            counts[group].update({pair.what: 1, "kept": pair.num_kept, "tokens": max(map(len, pair.tokens))})
        if pair.what == "changed" and len(changed) < max(options.rows, _MOST_ON_PAGE):
            changed.append(pair)
    total = counts.pop(("all", *by), Counter())
    console = Console() if sys.stdout.isatty() else Console(width=200)
    title, kinds = f"{first.location.name} and {second.location.name}", get_args(What)
    table = Table(*by, *kinds, "changed of all tokens", title=title)
    for group, of_group in [*sorted(counts.items()) * bool(by), (("all", *[""] * len(by))[: len(by)], total)]:
        share = 1 - of_group["kept"] / max(1, of_group["tokens"])
        cells = [*map(visible, group), *(f"{of_group[kind]:,}" for kind in kinds), f"{share:.1%}"]
        table.add_row(*map(Text, cells))
    console.print(table)
    for pair in changed[: options.rows]:
        console.print(Text(str(pair)))
    if total["changed"] > options.rows:
        print(f"and {total['changed'] - options.rows:,} more texts that changed; --rows N lists more")
    if options.html is not None:
        from jobs.report_page.page import rendered  # here, since it draws charts, which a table does not need

        codec, place = codec_or_why_not(second)[0], Location.parse(options.html)
        shown = [(pair, *marked(pair, codec)) for pair in changed[:_MOST_ON_PAGE]]
        rendered("diff.html", place, title=title, pairs=shown, counts={kind: total[kind] for kind in kinds})
        print(place.name)
    return Exit.COMPLETE if all(not total[kind] for kind in kinds if kind != "same") else Exit.FAILED


def pairs_of(first: RunDirectory, second: RunDirectory, by: Sequence[str] = ()) -> Iterator[Pair]:
    """Yield each sample of the second run's rows beside that of the first run, then those that are in the first alone.

    Rows are the same if their ids are, or else their places. Raises ValueError and OSError.
    """
    for run in (first, second):
        if run.has("scores"):
            raise ValueError(f"{run.location.name} has scores; name two runs whose rows are texts")
    refuse_unknown_columns(second, by)
    if first.run["identity"].get("tokenizer") != second.run["identity"].get("tokenizer"):
        raise ValueError(f"the tokenizers of {first.location.name} and {second.location.name} differ, and so do tokens")
    earlier, seen, nothing = EarlierRows(first, _COLUMNS), set[int](), ("",) * len(by)
    committed = second.committed_unit_ids()
    units = [unit for unit in second.units() if unit.unit_id in committed]
    for unit, rows in zip(units, each_unit(second, units, [*dict.fromkeys([*_COLUMNS, *by])]), strict=True):
        ids = {row["row_id"]: row["id"] for row in rows.errors.to_pylist()}
        samples: dict[int, dict[int, tuple[Any, tuple[str, ...]]]] = defaultdict(dict)
        groups = shown_rows(rows.generations, by)
        for row, group in zip(rows.generations.select(_COLUMNS).to_pylist(), groups, strict=True):
            samples[row["row_id"]][row["sample"]] = row, group
            ids[row["row_id"]] = row["id"]
        for row_id, user_id in sorted(ids.items()):
            old_id = earlier.find(user_id, unit.file, unit.row_start + unit.row_index(row_id))
            now, before = samples[row_id], dict[int, Any]()
            if old_id is not None:
                seen.add(old_id)
                before = {row["sample"]: row for row in earlier.samples(old_id)}
            for sample in sorted(before.keys() | now.keys()):
                new, group = now.get(sample, (None, nothing))
                yield Pair(unit.row_name(row_id, user_id), sample, group, before.get(sample), new)
    for unit in first.units():
        for row_id in map(unit.row_id, range(unit.num_rows)):
            for row in earlier.samples(row_id) if row_id not in seen else ():
                yield Pair(unit.row_name(row_id, row["id"]), row["sample"], nothing, row, None)


def marked(pair: Pair, codec: TextCodec | None) -> tuple[Pieces, Pieces]:
    """Return both texts in pieces; without a tokenizer they are token ids."""
    parts, pieces = [tokens[:_MOST_TOKENS] for tokens in pair.tokens], (Pieces(), Pieces())
    texts = [[f" {token}" for token in tokens] for tokens in parts]
    if codec is not None:
        before = codec.end_of((pair.second or {}).get("prompt") or "")
        texts = [token_texts(codec, before, tokens) for tokens in parts]
    for tag, *places in SequenceMatcher(None, parts[0], parts[1], autojunk=False).get_opcodes():
        for own, text, (begin, end) in zip(pieces, texts, (places[:2], places[2:]), strict=True):
            own.append((tag != "equal", "".join(text[begin:end])))
    return pieces
