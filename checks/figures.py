"""`python -m checks.figures [RUN [HEAD_RUN]]`: the figures of the bundled models that README.md quotes.

With the run directories of a demo (`out/demo`) and of the same with the bundled head (`out/demo-head`) it writes
examples/demo.csv and examples/demo-head.csv, which have a line for each bundled prompt, and the table in README.md
that sums those lines. A second table shows benchmarks/results/bundled-drafts.json, which `python -m benchmarks.drafts
--json FILE` writes. Without runs the tables are compared with these files, and 1 is returned if one differs.
tests/jobs/test_demo.py compares the lines with a demo.
"""

import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from checks import ROOT
from jobs.report import cells
from pipeline.counts import Counts

LINES = {"draft model": ROOT / "examples/demo.csv", "EAGLE-3 head": ROOT / "examples/demo-head.csv"}
SPEED = ROOT / "benchmarks/results/bundled-drafts.json"
README = ROOT / "README.md"
_DEMO = "<!-- figures of the demo: written by python -m checks.figures out/demo out/demo-head -->\n"
_SPEED = "<!-- speed of the bundled drafts: written by python -m checks.figures -->\n"
_END = "<!-- end of figures -->"
_HEAD = (
    "| kind | draft | rows | tokens | acceptance rate | mean acceptance length | accepted, by draft position |\n"
    "|---|---|---|---|---|---|---|\n"
)
_SPEED_HEAD = (
    "| rows at once | draft (drafter) | tokens a round | acceptance rate | tokens/s | times plain decoding | least |\n"
    "|---|---|---|---|---|---|---|\n"
)
_COUNTED = ("num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens")


def main(arguments: Sequence[str]) -> int:
    """Write the figures of runs and README's tables, or compare the tables; return 1 if they differ, else 0."""
    for draft, run in zip(LINES, arguments, strict=False):
        lines = lines_of(ds.dataset(Path(run) / "data", format="parquet").to_table().to_pylist())
        with LINES[draft].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    demo, speed = table({draft: read_lines(draft) for draft in LINES}), speed_table(json.loads(SPEED.read_text()))
    readme = README.read_text()
    written = _with_table(_with_table(readme, _DEMO, demo), _SPEED, speed)
    if arguments:
        README.write_text(written)
        print(demo + "\n" + speed, end="")
    elif written != readme:
        what = f"a table in README.md is not what {', '.join(path.name for path in (*LINES.values(), SPEED))} say"
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
    """Return README's table: for each kind and draft the sum of the lines."""
    sums: dict[tuple[str, str], Counts] = {}
    for draft, lines in lines_by_draft.items():
        for line in lines:
            per_position = tuple(map(int, line["accepted_per_position"].split()))
            counts = Counts(
                num_generations=1, accepted_per_position=per_position, **{name: int(line[name]) for name in _COUNTED}
            )
            key = line["kind"], draft
            sums[key] = sums.get(key, Counts()) + counts
    return _HEAD + "".join(f"| {' | '.join([*key, *cells(counts)])} |\n" for key, counts in sorted(sums.items()))


def speed_table(found: dict[str, Any]) -> str:
    """Return README's table of what the bundled drafts are worth, and where that was measured."""
    machine, settings = found["machine"], found["settings"]
    lines = "".join(f"| {' | '.join(_speed_cells(line))} |\n" for line in found["lines"])
    said = (
        f"\n{machine['processor']}, {machine['threads']} threads, {settings['dtype']}, temperature "
        f"{settings['temperature']:g}, at most {settings['num_draft_tokens']} draft tokens, {found['date']}; medians of "
        f"{settings['repeats']} repeats in turn, and the least of them.\n"
    )
    return _SPEED_HEAD + lines + said


def _speed_cells(line: dict[str, Any]) -> list[str]:
    rate = line["acceptance_rate"]
    return [
        str(line["rows_at_once"]),
        line["draft"],
        f"{line['tokens_a_round']:.2f}",
        "-" if rate is None else f"{rate:.3f}",
        f"{line['tokens_per_second']:,.0f}",
        f"{line['times_plain']:.2f}",
        f"{line['least_times_plain']:.2f}",
    ]


def _with_table(readme: str, begin: str, shown: str) -> str:
    """Return README.md with a table at its place, which is between two lines."""
    before, begins, rest = readme.partition(begin)
    _, ends, behind = rest.partition(_END)
    if not begins or not ends:
        raise ValueError(f"README.md has no place for a table: a line {begin.strip()!r} and a line {_END!r}")
    return before + begin + shown + _END + behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
