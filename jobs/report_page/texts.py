"""Texts of a run for a reader: some of the committed ones, and any text as a terminal shows it."""

from collections.abc import Iterator
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from actors.run_notes import WrittenText
from pipeline.inputs.values import visible
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_unit_rows

_MOST_LINES, _MOST_COLUMNS = 4, 280
_MOST_CHARACTERS = 4 * _MOST_COLUMNS  # a text of accents alone fills no column
_TAB_COLUMNS = 8


def text_to_show(text: WrittenText) -> Group:
    """Return a text with its row's name and its prompt, each cut to a few lines, and an empty line."""
    quoted = "\n".join(f"> {line}" for line in shortened(text.prompt).split("\n"))
    return Group(Text(f"row {text.row}", style="bold"), Text(quoted, style="dim"), Text(shortened(text.text)), Text())


def samples(run_directory: RunDirectory, num_wanted: int) -> Iterator[WrittenText]:
    """Yield the first generations of `num_wanted` units, spread over the committed ones: the same ones at each call."""
    unit_ids = sorted(run_directory.committed_unit_ids())
    num = min(num_wanted, len(unit_ids))
    chosen = {unit_ids[(2 * place + 1) * len(unit_ids) // (2 * num)] for place in range(num)}
    columns = ["row_id", "sample", "id", "prompt", "text"]
    for unit in run_directory.units() if chosen else ():
        if unit.unit_id in chosen:
            rows = read_unit_rows(run_directory, unit, has_errors=False, columns=columns).generations.slice(0, 1)
            for row in rows.to_pylist():  # none in a unit whose rows have all failed
                yield WrittenText(unit.row_name(row["row_id"], row["id"]), row["prompt"] or "", row["text"])


def shortened(text: str) -> str:
    """Return the first lines of a text, as far as they fill no more than some columns of a terminal."""
    safe = visible(text.strip())
    lines = "\n".join(safe.split("\n")[:_MOST_LINES])
    # A wide letter fills two columns, and an accent none.
    widths = accumulate(_TAB_COLUMNS if letter == "\t" else cell_len(letter) for letter in lines[:_MOST_CHARACTERS])
    cut = lines[: sum(1 for width in widths if width <= _MOST_COLUMNS)].rstrip()
    return cut if cut == safe else f"{cut} ..."
