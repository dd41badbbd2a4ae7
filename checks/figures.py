"""`python -m checks.figures [RUN]`: the figures of `make demo` that documents quote.

With the run directory of a demo (`out/demo`) it writes examples/demo.csv, which has a line for each bundled prompt, and
the table in README.md, which sums those lines. Without one it compares the table with the file and returns 1 if they
differ. tests/jobs/test_demo.py compares the file with a demo.
"""

import csv
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from checks import ROOT
from jobs.report import cells
from pipeline.counts import Counts

LINES = ROOT / "examples/demo.csv"
README = ROOT / "README.md"
_BEGIN = "<!-- figures of the demo: written by python -m checks.figures out/demo -->\n"
_END = "<!-- end of figures -->"
_HEAD = (
    "| kind | rows | tokens | acceptance rate | mean acceptance length | accepted, by draft position |\n"
    "|---|---|---|---|---|---|\n"
)
_COUNTED = ("num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens")


def main(arguments: Sequence[str]) -> int:
    """Write the figures of a run, or compare README's table with them; return 1 if it differs, else 0."""
    if arguments:
        lines = lines_of(ds.dataset(Path(arguments[0]) / "data", format="parquet").to_table().to_pylist())
        with LINES.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        before, _, behind = _parts(README.read_text())
        README.write_text(before + table(lines) + behind)
        print(table(lines), end="")
    elif _parts(README.read_text())[1] != table(read_lines()):
        what = f"the demo's table in README.md is not the sum of {LINES.name}"
        print(f"{what}; run make demo, then python -m checks.figures out/demo", file=sys.stderr)
        return 1
    return 0


def lines_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a digest of the tokens and the counts of each generation of a demo, in the order of their ids."""
    return [
        {
            "id": row["id"],
            "kind": row["kind"],
            "sha256": hashlib.sha256(str(row["token_ids"]).encode()).hexdigest()[:12],
        }
        | {name: str(row[name]) for name in _COUNTED}
        | {"accepted_per_position": " ".join(map(str, row["accepted_per_position"]))}
        for row in sorted(rows, key=lambda row: str(row["id"]))
    ]


def read_lines() -> list[dict[str, str]]:
    """Return the lines of examples/demo.csv."""
    with LINES.open(newline="") as file:
        return list(csv.DictReader(file))


def table(lines: Iterable[dict[str, str]]) -> str:
    """Return README's table: the sum of the lines of each kind."""
    kinds: dict[str, Counts] = {}
    for line in lines:
        per_position = tuple(map(int, line["accepted_per_position"].split()))
        counts = Counts(
            num_generations=1, accepted_per_position=per_position, **{name: int(line[name]) for name in _COUNTED}
        )
        kinds[line["kind"]] = kinds.get(line["kind"], Counts()) + counts
    return _HEAD + "".join(f"| {' | '.join([kind, *cells(counts)])} |\n" for kind, counts in sorted(kinds.items()))


def _parts(readme: str) -> tuple[str, str, str]:
    """Return what stands in README.md before the table, the table, and what stands behind it."""
    before, begin, rest = readme.partition(_BEGIN)
    shown, end, behind = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for the demo's table: a line {_BEGIN.strip()!r} and a line {_END!r}")
    return before + begin, shown, end + behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
