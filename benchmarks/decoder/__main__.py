"""`python -m benchmarks.decoder`: measure plain decoding, every drafter and other systems (`benchmarks/README.md`).

Needs `decoding/`, `benchmarks/`, torch and transformers (which brings rich) only.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers.utils import logging as transformers_logging

from benchmarks.decoder import table
from benchmarks.decoder.configurations import CONFIGURATIONS
from benchmarks.decoder.measure import measure
from benchmarks.decoder.options import BenchOptions, parse
from benchmarks.decoder.results import Report
from benchmarks.harness import show, write_json

SWEPT = ("plain", "fixed-?", "adaptive")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line says and print tables; return 0, or 2 for what cannot be measured."""
    prog = "python -m benchmarks.decoder"
    options, given = parse(arguments, prog)
    if given.list:
        for configuration in CONFIGURATIONS:
            print(configuration.name + ("" if configuration.is_default else "  (only when named)"))
        return 0
    command = shlex.join([*prog.split(), *(sys.argv[1:] if arguments is None else arguments)])
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        reports = measure_all(options, given, command)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for report in reports:
        print(*table.summary(report), sep="\n")
        show("results", table.HEADINGS, [table.cells(report, result) for result in report.results])
        if rows := table.round_rows(report):
            show("rounds, and the roofline", table.ROUND_HEADINGS, rows)
    if rows := table.sweep_rows(reports):
        show("adaptive against fixed lengths", table.SWEEP_HEADINGS, rows)
    print(*table.LEGEND, sep="\n")
    return 0


def measure_all(options: BenchOptions, given: Namespace, command: str) -> list[Report]:
    """Return one report, or one for each acceptance rate of the sweep; write each as soon as it is complete."""
    if not given.sweep:
        return [_measured(options, command, given.json)]
    if options.pair:
        raise ValueError("--sweep makes a pair for each acceptance rate; leave --pair away")
    options = replace(options, only=options.only or SWEPT)
    return [_measured(replace(options, acceptance=rate), command, _beside(given.json, rate)) for rate in given.sweep]


def _measured(options: BenchOptions, command: str, json_file: Path | None) -> Report:
    report = measure(options, command)
    if json_file:
        write_json(json_file, report.to_dict())
    return report


def _beside(file: Path | None, rate: float) -> Path | None:
    return file.with_stem(f"{file.stem}-{rate:g}") if file else None


if __name__ == "__main__":
    sys.exit(main())
