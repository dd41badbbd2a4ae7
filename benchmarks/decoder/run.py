"""`python -m benchmarks.run`: the benchmark where only torch and transformers are installed (no Ray, no rich).

`python -m jobs.bench` is the same with better-looking tables.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from transformers.utils import logging as transformers_logging

from benchmarks.chart import draw, require_matplotlib
from benchmarks.configurations import CONFIGURATIONS
from benchmarks.measure import measure
from benchmarks.options import BenchOptions, parse
from benchmarks.results import Report
from benchmarks.table import (
    HEADINGS,
    LEGEND,
    SWEEP_HEADINGS,
    TARGET_HEADINGS,
    cells,
    plain_table,
    summary,
    sweep_rows,
    target_rows,
)

Table = tuple[str, Sequence[str], list[list[str]]]  # title, headings, rows
ShowTable = Callable[[Table], None]
SWEPT = ("plain", "fixed-?", "adaptive")


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 for what cannot be measured."""
    return run(arguments, "python -m benchmarks.run", _show_plainly)


def run(arguments: Sequence[str] | None, prog: str, show: ShowTable) -> int:
    """Measure what the command line says; `show` prints each table."""
    options, given = parse(arguments, prog)
    if given.list:
        for configuration in CONFIGURATIONS:
            print(configuration.name + ("" if configuration.is_default else "  (only when named)"))
        return 0
    command = shlex.join([*prog.split(), *(sys.argv[1:] if arguments is None else arguments)])
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        if given.chart:
            require_matplotlib()
        reports = _measure_all(options, given, command)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for report in reports:
        for line in summary(report):
            print(line)
        show(("results", HEADINGS, [cells(report, result) for result in report.results]))
        if rows := target_rows(report):
            show(("targets", TARGET_HEADINGS, rows))
    if given.sweep:
        show(("adaptive against fixed lengths", SWEEP_HEADINGS, sweep_rows(reports)))
    for line in LEGEND:
        print(line)
    return 0


def _measure_all(options: BenchOptions, given: Namespace, command: str) -> list[Report]:
    """One report, or one for each acceptance rate of the sweep; each is written as soon as it is there."""
    if not given.sweep:
        return [_measured(options, command, given.json, given.chart)]
    if options.pair:
        raise ValueError("--sweep makes a pair for each acceptance rate; leave --pair away")
    options = replace(options, only=options.only or SWEPT)
    return [
        _measured(replace(options, acceptance=rate), command, _beside(given.json, rate), _beside(given.chart, rate))
        for rate in given.sweep
    ]


def _measured(options: BenchOptions, command: str, json_file: Path | None, chart: Path | None) -> Report:
    report = measure(options, command, lambda line: print(line, file=sys.stderr, flush=True))
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(report.to_json() + "\n")
    if chart:
        draw(report, chart)
    return report


def _beside(file: Path | None, rate: float) -> Path | None:
    return file.with_stem(f"{file.stem}-{rate:g}") if file else None


def _show_plainly(table: Table) -> None:
    title, headings, rows = table
    print(f"\n{title}\n{plain_table(headings, rows)}\n")


if __name__ == "__main__":
    sys.exit(main())
