"""The report as rows of text: headings, cells, and a plain table for where rich is not installed."""

from collections.abc import Iterable, Sequence

from benchmarks.decoder.results import Report, Result
from benchmarks.decoder.targets import Target, best_fixed, judge

HEADINGS = (
    "configuration",
    "batch",
    "tokens/s",
    "spread",
    "x plain",
    "ideal/s",
    "ideal x",
    "efficiency",
    "a round",
    "accepted",
    "by position",
    "bandwidth",
    "memory",
    "= hf",
    "= plain",
)
TARGET_HEADINGS = ("target", "wanted", "found", "met", "")
SWEEP_HEADINGS = ("acceptance", "batch", "plain/s", "best fixed", "fixed/s", "adaptive/s", "over fixed", "over plain")
LEGEND = (
    "tokens/s: output tokens by the median repeat; spread: (slowest - fastest) / median; x plain: over our plain "
    "decoding at this batch, paired by repeat",
    "ideal: the run's own forwards back to back and nothing else (prefill included); efficiency: their share of time",
    "a round: output tokens of a row for each target forward; accepted: of all drafted tokens; by position: of those "
    "that follow accepted ones only",
    "bandwidth: time to read the weights as fast as a copy moves bytes (read + written) / time of a plain step; "
    "memory: peak / (weights + KV slots)",
    "= hf, = plain: share of rows that equal transformers' greedy text, and our plain text",
)


def cells(report: Report, result: Result) -> list[str]:
    """Return one row of the table, a cell for each of HEADINGS."""
    if result.missing:
        return [result.name, str(result.batch), result.missing, *[""] * (len(HEADINGS) - 3)]
    figures = report.figures(result)
    return [
        result.name,
        str(result.batch),
        _number(figures["tokens_per_second"], ",.1f"),
        _number(figures["spread"], ".0%"),
        _number(figures["speedup"], ".2f"),
        _number(figures["ideal_tokens_per_second"], ",.1f"),
        _number(figures["ideal_speedup"], ".2f"),
        _number(figures["efficiency"], ".2f"),
        _number(figures["tokens_per_round"], ".2f"),
        _number(figures["acceptance_rate"], ".2f"),
        " ".join(f"{rate:.2f}".removeprefix("0") for rate in figures["acceptance_by_position"][:4]),
        _number(figures["bandwidth_share"], ".0%"),
        _number(figures["memory_ratio"], ".2f"),
        _number(result.equal_to_transformers, ".2f"),
        _number(result.equal_to_plain, ".2f"),
    ]


def summary(report: Report) -> list[str]:
    """Return the lines above the table."""
    machine, options = report.machine, report.options
    place = machine.get("gpu") or f"{machine['processor']}, {machine['threads']} threads"
    return [
        f"{report.date}  {place}, {options['dtype']}; " + ", ".join(f"{k} {v}" for k, v in report.versions.items()),
        f"pair {report.pair['folder']}: target {report.pair['target_bytes'] / 1e6:,.0f} MB, "
        f"draft {report.pair.get('draft_bytes', 0) / 1e6:,.0f} MB; corpus {options['corpus']}, "
        f"{options['new_tokens']} new tokens, temperature {options['temperature']}, {options['repeats']} repeats",
        f"memory: copy {report.copy_bandwidth / 1e9:.1f} GB/s (read + written), "
        f"read {report.read_bandwidth / 1e9:.1f} GB/s; a forward reads {report.target_bytes / 1e6:,.0f} MB of weights",
    ]


def target_rows(report: Report) -> list[list[str]]:
    """Return a row for each target that this run measured: its name, the least value, the value found, met or not."""
    return [_target_cells(target) for target in judge(report)]


def sweep_rows(reports: Iterable[Report]) -> list[list[str]]:
    """Return a row for each pair and batch: adaptive against the best fixed length and against plain decoding."""
    rows: list[list[str]] = []
    for report in reports:
        for adaptive in (result for result in report.results if result.name == "adaptive" and result.seconds):
            plain, fixed = report.plain_beside(adaptive), best_fixed(report, adaptive.batch)
            rows.append(
                [
                    _number(report.pair.get("acceptance"), ".2f"),
                    str(adaptive.batch),
                    _number(plain.tokens_per_second if plain else None, ",.1f"),
                    fixed.name if fixed else "",
                    _number(fixed.tokens_per_second if fixed else None, ",.1f"),
                    _number(adaptive.tokens_per_second, ",.1f"),
                    _number(adaptive.speedup(fixed) if fixed else None, ".3f"),
                    _number(adaptive.speedup(plain) if plain else None, ".3f"),
                ]
            )
    return rows


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned text; the first column is to the left, and the reason of a row without figures is not cut."""
    rows = [list(row) for row in rows]
    counted = [row for row in rows if len([cell for cell in row if cell]) > 3]
    widths = [max(len(row[i]) for row in [list(headings), *counted]) for i in range(len(headings))]
    widths[0] = max(widths[0], *(len(row[0]) for row in rows)) if rows else widths[0]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [list(headings), *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _target_cells(target: Target) -> list[str]:
    met = "yes" if target.is_met else "NO"
    sign = "<" if target.at_most else ">="
    return [target.name, f"{sign} {target.wanted:.2f}", f"{target.found:.2f}", met, target.note]


def _number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)
