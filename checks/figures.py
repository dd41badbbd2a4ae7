"""`python -m checks.figures [--write | RUN [HEAD_RUN]]`: the figures that documents quote.

With the run directories of a demo (`out/demo`) and of the same with the bundled head (`out/demo-head`) it writes
examples/demo.csv and examples/demo-head.csv, which have a line for each bundled prompt, and all tables, as `--write`
does without runs. README's table sums those lines. Its last columns, and all other tables, are of these files in
benchmarks/results, each of which the command beside it writes with `--json FILE`:

bundled-drafts.json                  `python -m benchmarks.drafts`                  docs/speed.md
trained-heads.json                   `python -m benchmarks.drafts --heads ...`      docs/speed.md, README.md
trees.json                           `python -m benchmarks.trees`                   docs/speed.md
learning.json                        `python -m benchmarks.learning`                docs/learning.md
forms.json, -fixed.json, -grown.json `python -m benchmarks.forms`                   docs/structured.md
scale.json                           `python -m benchmarks.scale commands`          docs/scale.md
predictions.json, -smollm2.json      `python -m benchmarks.predictions`             docs/auditing.md
real-*.json                          `make bench-real`                              docs/speed.md
self-tuning.json, if it is there     `python -m benchmarks.self_tuning`             docs/speed.md

Without arguments it compares the pages with these files and returns 1 if they differ, or if a file does not show what
is claimed of it. tests/jobs/test_demo.py compares the lines with a demo.
"""

import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from checks import ROOT
from checks.tables import (
    COUNTED,
    PEERS,
    demo_table,
    forms_table,
    heads_table,
    learned_table,
    noise_table,
    predictions_table,
    real_speeds,
    real_table,
    rows_at_once,
    scale_table,
    self_tuning_table,
    speed_table,
)

LINES = {"draft model": ROOT / "examples/demo.csv", "EAGLE-3 head": ROOT / "examples/demo-head.csv"}
RESULTS = ROOT / "benchmarks/results"
SPEED, HEADS, TREES = RESULTS / "bundled-drafts.json", RESULTS / "trained-heads.json", RESULTS / "trees.json"
LEARNED, SCALE, TUNED = RESULTS / "learning.json", RESULTS / "scale.json", RESULTS / "self-tuning.json"
FORMS = [RESULTS / f"forms{name}.json" for name in ("", "-fixed", "-grown")]
PREDICTED = [RESULTS / f"predictions{name}.json" for name in ("", "-smollm2")]
REAL = sorted(RESULTS.glob("real-*.json"), reverse=True)
README, SPEEDS = ROOT / "README.md", ROOT / "docs/speed.md"
LEARNING, STRUCTURED = ROOT / "docs/learning.md", ROOT / "docs/structured.md"
LARGE, AUDITS = ROOT / "docs/scale.md", ROOT / "docs/auditing.md"
_BEGIN = "<!-- figures of {}: written by python -m checks.figures {} -->\n"
_END = "<!-- end of figures -->"
_COMMAND = (
    "write them with python -m checks.figures --write, or, after make demo and make demo-head, with "
    "python -m checks.figures out/demo out/demo-head"
)
_MOST_PERCENT = 2  # that drafts which do not pay may cost, as README says
_TREES_PAY = 1.03  # times the best chain, from which on docs/adr/0067 asks for trees


def main(arguments: Sequence[str]) -> int:
    """Write the figures of runs and README's table, or compare the table; return 1 if it differs."""
    is_written = bool(arguments)
    arguments = [each for each in arguments if each != "--write"]
    if len(arguments) > len(LINES):
        print(f"expected at most {len(LINES)} run directories, got {len(arguments)}", file=sys.stderr)
        return 2
    for draft, run in zip(LINES, arguments, strict=False):
        lines = lines_of(ds.dataset(Path(run) / "data", format="parquet").to_table().to_pylist())
        with LINES[draft].open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
    drafts, heads, trees, learned, scale = (_read(path) for path in (SPEED, HEADS, TREES, LEARNED, SCALE))
    forms, predicted, real = ([_read(path) for path in paths] for paths in (FORMS, PREDICTED, REAL))
    is_stale = False
    for page, what, shown in (
        (README, "the demo", demo_table({draft: read_lines(draft) for draft in LINES}, heads)),
        (SPEEDS, "speed", speed_table(drafts)),
        (SPEEDS, "heads", heads_table(heads)),
        (SPEEDS, "noise", noise_table(trees)),
        (SPEEDS, "real models", real_table(real)),
        *([(SPEEDS, "self-tuning", self_tuning_table(_read(TUNED)))] if TUNED.exists() else []),
        (LEARNING, "learning", learned_table(learned)),
        (STRUCTURED, "forms", forms_table(forms)),
        (LARGE, "scale", scale_table(scale)),
        (AUDITS, "predictions", predictions_table(predicted)),
    ):
        before = page.read_text()
        begin = _BEGIN.format(what, "out/demo out/demo-head" if page == README else "--write")
        written = _with_table(page.name, before, begin, shown)
        if is_written:
            page.write_text(written)
            print(shown, end="")
        elif written != before:
            is_stale = True
            sources = ", ".join(
                path.name
                for path in (*LINES.values(), SPEED, HEADS, TREES, TUNED, LEARNED, *FORMS, SCALE, *PREDICTED, *REAL)
            )
            print(f"the figures in {page.name} are not what {sources} say; {_COMMAND}", file=sys.stderr)
    lost = [claim for claim, holds in claims(drafts, heads, learned, forms, trees, predicted, real) if not holds]
    for claim in lost:
        print(f"the recorded figures do not show that {claim}", file=sys.stderr)
    return int(is_stale or bool(lost))


def lines_of(rows: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a digest of the tokens and the counts of each generation of a demo, in the order of their ids."""
    return [
        {
            "id": row["id"],
            "kind": row["kind"],
            "sha256": hashlib.sha256(str(row["token_ids"]).encode()).hexdigest()[:12],
        }
        | {name: str(row[name]) for name in COUNTED}
        | {"accepted_per_position": " ".join(map(str, row["accepted_per_position"]))}
        for row in sorted(rows, key=lambda row: str(row["id"]))
    ]


def read_lines(draft: str = "draft model") -> list[dict[str, str]]:
    """Return the lines of the demo with one of the drafts of `LINES`."""
    with LINES[draft].open(newline="") as file:
        return list(csv.DictReader(file))


def claims(
    drafts: dict[str, Any],
    heads: dict[str, Any],
    learned: dict[str, Any],
    forms: Sequence[dict[str, Any]],
    trees: dict[str, Any],
    predicted: Sequence[dict[str, Any]],
    real: Sequence[dict[str, Any]],
) -> Iterator[tuple[str, bool]]:
    """Yield what is said of recorded figures, and whether they show it."""
    for line in (*drafts["lines"], *heads["lines"]):
        if line["draft"].startswith("none"):
            continue
        least = 1 - _MOST_PERCENT / 100
        at_once = rows_at_once(line["rows_at_once"])
        what = f"{line['draft']} has at least {least} of plain decoding's speed, {at_once} at once"
        yield what, line["times_plain"] >= least
    untimed = {line["draft"] for line in heads["lengths"]} - {line["draft"] for line in heads["lines"]}
    yield f"no head is left untimed: {sorted(untimed)}", not (heads["settings"]["repeats"] and untimed)
    yield (
        f"drafts cost at most {_MOST_PERCENT} %, in README's words",
        f" at most {_MOST_PERCENT} % " in README.read_text(),
    )
    for line in trees["noise"]:
        what = f"{line['draft']} has a fifth more tokens a round with the noise, temperature {line['temperature']:g}"
        yield what, line["with_noise"] >= 1.2 * line["without_noise"]
    for line in trees["speeds"]:
        what = f"no tree has {_TREES_PAY} times the speed of the best chain ({line['draft']}, {line['costs']})"
        if line["is_measured"]:
            yield what, line["tree_times_chain"] < _TREES_PAY
    for line in (line for run in predicted for line in run["lines"]):
        if "none" not in line["work"]:
            where = f"{line['work']}, {line['dtype']}, {rows_at_once(line['rows_at_once'])} at once"
            least = min(line["times_plain"], line.get("times_suffix", 1.0))  # early figures do not have the second
            yield f"old texts cost at most a twentieth of the speed ({where})", least >= 0.95
    for run in real:
        speeds = real_speeds(run)
        for (peer, batch), theirs in speeds.items():
            # In bfloat16 llama.cpp alone reads the codes, which are less than half as many bytes.
            if peer in PEERS and (peer, run["options"]["dtype"]) != ("llamacpp", "bfloat16"):
                where = f"{run['options']['pair']}, {run['options']['dtype']}, {rows_at_once(batch)} at once"
                yield f"plain decoding is as fast as {PEERS[peer]} ({where})", speeds["plain", batch] >= theirs
    lines = {(line["draft"], line["kind"]): line for line in learned["lines"]}
    lengths = {key: line["live_length"] for key, line in lines.items()}
    for (name, kind), line in lines.items():
        before, after, head = (lengths[each, kind] for each in ("before", "draft", "head"))
        yield f"a draft writes a quarter more tokens a round of {kind} once it learned", after >= 1.25 * before
        yield f"a head comes near a draft that learned on {kind}", head >= 0.8 * after
        is_near = abs(line["predicted_rate"] - line["live_rate"]) <= 0.05
        is_near &= abs(line["predicted_length"] - line["live_length"]) <= 0.1
        yield f"what is predicted of {name} on {kind} comes true", is_near
    for run in forms:
        is_fixed = run["settings"]["draft_length"] == "fixed"
        for line in run["lines"]:
            drafter, output, at_once = line["drafter"], line["output"], line["rows_at_once"]
            where = f"{drafter}, {output}, {rows_at_once(at_once)} at once, layers {line['grown']} times as wide"
            if (drafter, output) == ("none", "schema") and (at_once > 1 or line["grown"] > 1):
                yield f"a schema costs at most a twentieth of the speed ({where})", line["times_no_form"] >= 0.95
            is_tight = (output, at_once, line["grown"]) == ("tight schema", 4, 1) and drafter in ("suffix", "model")
            if is_tight or (is_fixed and drafter == "ngram" and output in ("schema", "tight schema")):
                gained = line["tokens_a_round_times_not_forced"] >= 1.2 and line["times_not_forced"] > 1
                gained &= not is_fixed or line["times_no_form"] > 1
                yield f"forced tokens bring 1.2 times the tokens a round and save time ({where})", gained


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _with_table(name: str, page: str, begin: str, shown: str) -> str:
    """Return a page with its figures at their place, which is between two lines."""
    before, begins, rest = page.partition(begin)
    _, ends, behind = rest.partition(_END)
    if not begins or not ends:
        raise ValueError(f"{name} has no place for figures: a line {begin.strip()!r} and a line {_END!r}")
    return before + begin + shown + _END + behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
