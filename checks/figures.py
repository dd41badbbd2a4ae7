"""`python -m checks.figures [--write | RUN [HEAD_RUN]]`: the figures that documents quote.

With the run directories of a demo (`out/demo`) and of the same with the bundled head (`out/demo-head`) it writes
examples/demo.csv and examples/demo-head.csv, which have a line for each bundled prompt, and the table in README.md that
sums those lines, as `--write` does without runs. The speeds in docs/speed.md come from benchmarks/results/bundled-
drafts.json (`python -m benchmarks.drafts --json FILE`), what drafts gain by noise from trees.json beside it (`python -m
benchmarks.trees --json FILE`), what a draft learned, in docs/learning.md, from learning.json
beside it (`python -m benchmarks.learning --json FILE`), and what a form costs, in docs/structured.md, from forms.json,
forms-fixed.json and forms-grown.json (`python -m benchmarks.forms --json FILE`). What the commands on a large run take,
in docs/scale.md, comes from scale.json (`python -m benchmarks.scale commands --json FILE`). Without arguments it
compares the pages with these files and returns 1 if they differ, or if a file does not show what is claimed of it.
tests/jobs/test_demo.py compares the lines with a demo.
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
from pipeline.counts import Counts

LINES = {"draft model": ROOT / "examples/demo.csv", "EAGLE-3 head": ROOT / "examples/demo-head.csv"}
SPEED = ROOT / "benchmarks/results/bundled-drafts.json"
LEARNED = ROOT / "benchmarks/results/learning.json"
FORMS = [ROOT / f"benchmarks/results/forms{name}.json" for name in ("", "-fixed", "-grown")]
SCALE = ROOT / "benchmarks/results/scale.json"
TREES = ROOT / "benchmarks/results/trees.json"
README, SPEEDS = ROOT / "README.md", ROOT / "docs/speed.md"
LEARNING, STRUCTURED = ROOT / "docs/learning.md", ROOT / "docs/structured.md"
LARGE = ROOT / "docs/scale.md"
_BEGIN_SCALE = "<!-- figures of scale: written by python -m checks.figures --write -->\n"
_BEGIN_FORMS = "<!-- figures of forms: written by python -m checks.figures --write -->\n"
_BEGIN_LEARNED = "<!-- figures of learning: written by python -m checks.figures --write -->\n"
_BEGIN_NOISE = "<!-- figures of noise: written by python -m checks.figures --write -->\n"
_BEGIN_SPEEDS = "<!-- figures of speed: written by python -m checks.figures --write -->\n"
_BEGIN = "<!-- figures of the demo: written by python -m checks.figures out/demo out/demo-head -->\n"
_END = "<!-- end of figures -->"
_COMMAND = (
    "write them with python -m checks.figures --write, or, after make demo and make demo-head, with "
    "python -m checks.figures out/demo out/demo-head"
)
_MOST_PERCENT = 3  # that drafts which do not pay may cost, as README says
_TREES_PAY = 1.03  # times the best chain, from which on docs/adr/0067 asks for trees
_COUNTED = ("num_output_tokens", "num_rounds", "num_draft_tokens", "num_accepted_tokens")


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
    learned = json.loads(LEARNED.read_text()) if LEARNED.exists() else None  # nothing is said of what is not measured
    forms = [json.loads(path.read_text()) for path in FORMS if path.exists()]
    demo = table({draft: read_lines(draft) for draft in LINES})
    is_stale = False
    for page, begin, shown in (
        (README, _BEGIN, demo),
        (SPEEDS, _BEGIN_SPEEDS, speed_table(json.loads(SPEED.read_text()))),
        (SPEEDS, _BEGIN_NOISE, noise_table(json.loads(TREES.read_text()))),
        (LEARNING, _BEGIN_LEARNED, learned_table(learned) if learned else ""),
        (STRUCTURED, _BEGIN_FORMS, forms_table(forms)),
        (LARGE, _BEGIN_SCALE, scale_table(json.loads(SCALE.read_text()))),
    ):
        before = page.read_text()
        written = _with_table(page.name, before, begin, shown)
        if is_written:
            page.write_text(written)
            print(shown, end="")
        elif written != before:
            is_stale = True
            sources = ", ".join(path.name for path in (*LINES.values(), SPEED, TREES, LEARNED, *FORMS, SCALE))
            print(f"the figures in {page.name} are not what {sources} say; {_COMMAND}", file=sys.stderr)
    recorded = json.loads(SPEED.read_text()), learned, forms, json.loads(TREES.read_text())
    lost = [claim for claim, holds in claims(*recorded) if not holds]
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
    rows = [["kind", "rows", "tokens", *lines_by_draft]]
    for kind, by_draft in sorted(sums.items()):
        first = next(iter(by_draft.values()))
        lengths = [f"{counts.mean_acceptance_length:.2f}" for counts in by_draft.values()]
        rows.append([kind, str(first.num_generations), f"{first.num_output_tokens:,}", *lengths])
    return _markdown(rows)


def speed_table(found: dict[str, Any]) -> str:
    """Return how fast plain decoding is, and each of the bundled drafts beside it, and where that was measured."""
    settings, machine, threads = found["settings"], found["machine"], found["machine"]["threads"]
    where = f"{machine['processor']}, {threads} thread{'s' if threads > 1 else ''}, {found['date']}"
    at_once = sorted({line["rows_at_once"] for line in found["lines"]})
    speeds = {(line["draft"], line["rows_at_once"]): f"{line['times_plain']:.2f}" for line in found["lines"]}
    speeds |= {("none", line["rows_at_once"]): _plain_speed(line) for line in found["lines"] if line["draft"] == "none"}
    drafts = dict.fromkeys(line["draft"] for line in found["lines"])
    rows = [["draft", *drafts]]
    for number in at_once:
        rows.append([f"{_rows(number)} at once", *(speeds[draft, number] for draft in drafts)])
    return (
        "Tokens a second of plain decoding, and how many times that each draft makes where each row drafts as much as "
        f"pays (`python -m benchmarks.drafts`; {where}; {settings['dtype']}, temperature {settings['temperature']:g}; "
        f"medians of {settings['repeats']}):\n\n" + _markdown(rows)
    )


def noise_table(found: dict[str, Any]) -> str:
    """Return the mean acceptance lengths of drafts that pick with the noise of the row, and of the same without."""
    rows = [["draft", "temperature", "with the noise", "without", "times"]]
    for line in found["noise"]:
        lengths = line["with_noise"], line["without_noise"]
        cells = (f"{line['temperature']:g}", *(f"{each:.2f}" for each in (*lengths, lengths[0] / lengths[1])))
        rows.append([line["draft"], *cells])
    return (
        f"Mean acceptance lengths with {found['settings']['of_noise']} draft tokens, on the texts of the demo "
        f"(`python -m benchmarks.trees`; {found['date']}, float32):\n\n" + _markdown(rows)
    )


def claims(
    drafts: dict[str, Any], learned: dict[str, Any] | None, forms: Sequence[dict[str, Any]], trees: dict[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield what is said of recorded figures, and whether they show it."""
    for line in drafts["lines"]:
        least = 1 - _MOST_PERCENT / 100
        what = f"{line['draft']} has at least {least} of plain decoding's speed, {_rows(line['rows_at_once'])} at once"
        yield what, line["times_plain"] >= least
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
    lines = {(line["draft"], line["kind"]): line for line in (learned or {"lines": ()})["lines"]}
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
            where = f"{drafter}, {output}, {_rows(at_once)} at once, layers {line['grown']} times as wide"
            if (drafter, output) == ("none", "schema") and (at_once > 1 or line["grown"] > 1):
                yield f"a schema costs at most a twentieth of the speed ({where})", line["times_no_form"] >= 0.95
            is_tight = (output, at_once, line["grown"]) == ("tight schema", 4, 1) and drafter in ("suffix", "model")
            if is_tight or (is_fixed and drafter == "ngram" and output in ("schema", "tight schema")):
                gained = line["tokens_a_round_times_not_forced"] >= 1.2 and line["times_not_forced"] > 1
                gained &= not is_fixed or line["times_no_form"] > 1
                yield f"forced tokens bring 1.2 times the tokens a round and save time ({where})", gained


def _plain_speed(line: dict[str, Any]) -> str:
    return f"{line['tokens_per_second']:,.0f} tokens/s"


def _rows(number: int) -> str:
    return f"{number} row{'s' if number > 1 else ''}"


def learned_table(found: dict[str, Any]) -> str:
    """Return what docs/learning.md says of a draft and a head that learned from a corpus of the bundled target."""
    names = {"before": "the draft before", "draft": "the draft after", "head": "the head"}
    heading = ["kind", *(f"{name}: {what}" for name in names.values() for what in ("match rate", "predicted", "live"))]
    rows = [heading]
    lines = {(line["draft"], line["kind"]): line for line in found["lines"]}
    for kind in dict.fromkeys(line["kind"] for line in found["lines"]):
        of_kind = [lines[name, kind] for name in names]
        cells = [(f"{x['match_rate']:.3f}", f"{x['predicted_length']:.2f}", f"{x['live_length']:.2f}") for x in of_kind]
        rows.append([kind, *(cell for each in cells for cell in each)])
    trained, machine = found["trained"], found["machine"]
    costs = "; ".join(
        f"{what} read {trained[name]['num_tokens']:,} tokens of {trained[name]['rows']:,} texts in "
        f"{trained[name]['steps']:,} steps and {trained[name]['seconds']:.0f} s"
        for name, what in (("draft", "the draft"), ("head", "the head"))
    )
    speeds = "; ".join(
        f"{line['draft']}, {line['rows_at_once']} at once: {line['tokens_per_second']:,.0f} ({line['times_plain']:.2f})"
        for line in found["speeds"]
    )
    where = f"{machine['processor']}, {found['date']}"
    return (
        f"Our figures, of `python -m benchmarks.learning` ({where}): the bundled target, {found['num_held_out_rows']} "
        f"held-out rows, mean acceptance lengths with four draft tokens. On one CPU {costs}.\n\n"
        + _markdown(rows)
        + f"\nTokens a second, and times plain decoding (`none`), where each row drafts as much as pays: {speeds}.\n"
    )


def forms_table(runs: Sequence[dict[str, Any]]) -> str:
    """Return what docs/structured.md says of the cost of a form, and of forced tokens, in runs of benchmarks.forms."""
    outputs = {"schema": "a schema", "tight schema": "without white space"}
    heading = ["target", "rows at once", "draft", "no form: ms a round", "no form: tokens/s", *outputs.values()]
    rows = [[*heading, *(f"{name}: tokens a round" for name in outputs.values())]]
    for run in runs:
        settings = run["settings"]
        is_fixed = settings["draft_length"] == "fixed"
        lines = {(line["grown"], line["rows_at_once"], line["drafter"], line["output"]): line for line in run["lines"]}
        for grown, at_once, drafter in dict.fromkeys(key[:3] for key in lines):
            plain, *held = (lines[grown, at_once, drafter, output] for output in ("no form", *outputs))
            target = "bundled" if grown == 1 else f"bundled, layers {grown} times as wide"
            speeds = [f"{each['tokens_per_second']:,.0f} ({each['times_no_form']:.2f})" for each in held]
            draft = f"{drafter}, up to {settings['num_draft_tokens']} tokens always" if is_fixed else drafter
            cells = [target, str(at_once), draft, f"{plain['milliseconds_a_round']:.1f}"]
            rows.append([*cells, f"{plain['tokens_per_second']:,.0f}", *speeds, *map(_forced_tokens, held)])
    machine, settings = runs[0]["machine"], runs[0]["settings"]
    compiled = max(seconds for run in runs for seconds in run["compile_seconds"].values())
    return (
        f"Our figures, of `python -m benchmarks.forms` ({machine['processor']}, 1 thread, {runs[0]['date']}; float32, "
        f"temperature {settings['temperature']:g}, medians of {settings['repeats']}): records in JSON by the bundled "
        "pair. In brackets behind a speed it stands times the speed without a form and with the same draft; behind "
        "tokens a round, times those of a run in which forced tokens are no drafts. Each schema is compiled once, "
        f"before all rounds, in at most {1000 * compiled:.1f} ms here.\n\n" + _markdown(rows)
    )


def scale_table(found: dict[str, Any]) -> str:
    """Return what docs/scale.md says of the commands on a run: seconds, seconds of CPU and megabytes of each."""
    costs, machine = found["costs"], found["machine"]
    sizes = dict.fromkeys((cost["num_units"], cost["num_rows"], cost["delay_ms"]) for cost in costs)
    by_command = {(cost["command"], cost["num_units"], cost["num_rows"], cost["delay_ms"]): cost for cost in costs}
    heading = ["command"]
    for units, rows, delay in sizes:
        where = "disk" if delay is None else f"a store, {delay:g} ms a request"
        heading.append(f"{units:,} parts, {rows:,} rows, {where}")
    lines = [heading]
    for command in dict.fromkeys(cost["command"] for cost in costs):
        of_command = [by_command.get((command, *size)) for size in sizes]
        lines.append([f"`{command}`", *("-" if cost is None else _cost(cost) for cost in of_command)])
    loads = [cost["load"] for cost in costs]
    return (
        f"Seconds, seconds of CPU and megabytes (`python -m benchmarks.scale commands`; {machine['processor']}, "
        f"{machine['cpus']} CPUs, {found['date']}). Beside it {min(loads):.0f} to {max(loads):.0f} processes wanted "
        "these CPUs, so the seconds of CPU are what to compare.\n\n" + _markdown(lines)
    )


def _cost(cost: dict[str, Any]) -> str:
    return f"{cost['seconds']:.0f} s, {cost['cpu_seconds']:.1f} s, {cost['megabytes']:.0f} MB"


def _forced_tokens(line: dict[str, Any]) -> str:
    times = line["tokens_a_round_times_not_forced"]
    return f"{line['tokens_a_round']:.2f}" + ("" if times is None else f" ({times:.2f})")


def _markdown(rows: list[list[str]]) -> str:
    """Return rows as a table of Markdown, the first one as its heading."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def _with_table(name: str, page: str, begin: str, shown: str) -> str:
    """Return a page with its figures at their place, which is between two lines."""
    before, begins, rest = page.partition(begin)
    _, ends, behind = rest.partition(_END)
    if not begins or not ends:
        raise ValueError(f"{name} has no place for figures: a line {begin.strip()!r} and a line {_END!r}")
    return before + begin + shown + _END + behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
