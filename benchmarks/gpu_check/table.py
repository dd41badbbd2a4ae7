"""The table of the check-up: part, what was asked, what was found, and whether that is as wanted, in 100 columns."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from benchmarks.gpu_check.findings import Finding
from benchmarks.gpu_check.parts import Part
from benchmarks.gpu_check.results import Kept, PartResult

_WIDTHS = (25, 31, 34, 4)
_HEADINGS = ("part", "asked", "found", "")
WIDTH = sum(_WIDTHS) + 2 * (len(_WIDTHS) - 1)
PASS, FAIL, UNKNOWN = "pass", "FAIL", "?"


def lines(parts: Sequence[Part], kept: Kept) -> Iterator[str]:
    """Yield the lines of the table, and one that counts."""
    verdicts: list[str] = []
    yield from _line(_HEADINGS)
    for part in parts:
        yield "-" * WIDTH
        for cells in _rows(part, kept):
            verdicts.append(cells[-1])
            yield from _line(cells)
    yield "-" * WIDTH
    yield ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (PASS, FAIL, UNKNOWN))


def is_as_wanted(parts: Sequence[Part], kept: Kept) -> bool:
    """Tell whether nothing that was measured failed or was stopped."""
    return not any(cells[-1] == FAIL for part in parts for cells in _rows(part, kept))


def _rows(part: Part, kept: Kept) -> Iterator[tuple[str, ...]]:
    result = kept.get(part.name)
    if result is None:
        yield part.name, part.asks, "not run yet", UNKNOWN
        return
    if result.status == "not measured":
        yield part.name, part.asks, f"not measured: {result.why}", UNKNOWN
        return
    found = list(part.judge(result.measured, kept)) if result.measured else []
    yield part.name, part.asks, *_outcome(result, found)
    for finding in found:
        wanted = f" (wanted: {finding.wanted})" if finding.wanted else ""
        yield "", f"  {finding.what}", finding.found + wanted, _verdict(finding)


def _outcome(result: PartResult, found: Sequence[Finding]) -> tuple[str, str]:
    """Return how a part ended. Failures that its findings tell are not told twice."""
    if result.status == "done":
        return f"done in {result.seconds:.0f} s on {result.started} UTC", ""
    is_told = any(finding.is_met is False for finding in found)
    return result.why, "" if is_told else FAIL


def _verdict(finding: Finding) -> str:
    if finding.is_met is None:
        return UNKNOWN if finding.wanted else ""
    return PASS if finding.is_met else FAIL


def _line(cells: Sequence[str]) -> Iterator[str]:
    """Yield a row, whose cells are broken where they are too long."""
    columns = [
        wrap(cell, width, subsequent_indent="  " if cell.startswith("  ") else "") or [""]
        for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    for index in range(max(map(len, columns))):
        parts = [column[index] if index < len(column) else "" for column in columns]
        yield "  ".join(part.ljust(width) for part, width in zip(parts, _WIDTHS, strict=True)).rstrip()
