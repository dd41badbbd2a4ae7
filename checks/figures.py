"""`python -m checks.figures [RUN [HEAD_RUN]]`: the figures of `make demo` that documents quote.

With the run directories of a demo (`out/demo`) and of the same with the bundled head (`out/demo-head`) it writes
examples/demo.csv and examples/demo-head.csv, which have a line for each bundled prompt, and the table in README.md
that sums those lines. Without runs it compares the table with these files and returns 1 if they differ.
tests/jobs/test_demo.py compares the files with a demo.
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

LINES = {"draft model": ROOT / "examples/demo.csv", "EAGLE-3 head": ROOT / "examples/demo-head.csv"}
README = ROOT / "README.md"
_BEGIN = "<!-- figures of the demo: written by python -m checks.figures out/demo out/demo-head -->\n"
_END = "<!-- end of figures -->"
_OF_DRAFT = ("acceptance rate", "mean acceptance length", "accepted, by draft position")
_COUNTED = ("num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens")


def main(arguments: Sequence[str]) -> int:
    """Write the figures of runs and README's table, or compare the table; return 1 if it differs."""
    if len(arguments) > len(LINES):
        print(f"expected at most {len(LINES)} run directories, got {len(arguments)}", file=sys.stderr)
        return 2
    for draft, run in zip(LINES, arguments, strict=False):
        lines = lines_of(ds.dataset(Path(run) / "data", format="parquet").to_table().to_pylist())
        with LINES[draft].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    shown, readme = table({draft: read_lines(draft) for draft in LINES}), README.read_text()
    written = _with_table(readme, shown)
    if arguments:
        README.write_text(written)
        print(shown, end="")
    elif written != readme:
        what = f"the demo's table in README.md is not the sum of {' and '.join(path.name for path in LINES.values())}"
        command = "python -m checks.figures out/demo out/demo-head"
        print(f"{what}; run make demo and make demo-head, then {command}", file=sys.stderr)
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


def read_lines(draft: str = "draft model") -> list[dict[str, str]]:
    """Return the lines of the demo with one of the drafts of `LINES`."""
    with LINES[draft].open(newline="") as file:
        return list(csv.DictReader(file))


def table(lines_by_draft: dict[str, list[dict[str, str]]]) -> str:
    """Return README's table: for each kind the sum of the lines, with each draft. The text is the same with all."""
    sums: dict[str, dict[str, Counts]] = {}
    for draft, lines in lines_by_draft.items():
        for line in lines:
            per_position = tuple(map(int, line["accepted_per_position"].split()))
            counts = Counts(
                num_generations=1, accepted_per_position=per_position, **{name: int(line[name]) for name in _COUNTED}
            )
            of_kind = sums.setdefault(line["kind"], dict.fromkeys(lines_by_draft, Counts()))
            of_kind[draft] += counts
    heading = ["kind", "rows", "tokens"]
    for draft in lines_by_draft:
        heading += [f"{draft}: {_OF_DRAFT[0]}", *_OF_DRAFT[1:]]
    rows = [heading, ["---"] * len(heading)]
    for kind, by_draft in sorted(sums.items()):
        shown = [cells(counts) for counts in by_draft.values()]
        rows.append([kind, *shown[0][:2], *(cell for each in shown for cell in each[2:])])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _with_table(readme: str, shown: str) -> str:
    """Return README.md with a table at its place, which is between two lines."""
    before, begins, rest = readme.partition(_BEGIN)
    _, ends, behind = rest.partition(_END)
    if not begins or not ends:
        raise ValueError(f"README.md has no place for a table: a line {_BEGIN.strip()!r} and a line {_END!r}")
    return before + _BEGIN + shown + _END + behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
