"""The report as rows of text: headings and cells."""

from collections.abc import Iterable
from typing import Any

from benchmarks.decoder.results import Report, Result

_COLUMNS = {  # by heading: a field or figure of a result, and how it is written
    "configuration": ("name", ""),
    "batch": ("batch", ""),
    "tokens/s": ("tokens_per_second", ",.1f"),
    "spread": ("spread", ".0%"),
    "x plain": ("speedup", ".2f"),
    "ideal/s": ("ideal_tokens_per_second", ",.1f"),
    "ideal x": ("ideal_speedup", ".2f"),
    "efficiency": ("efficiency", ".2f"),
    "roofline": ("roofline_share", ".0%"),
    "a round": ("tokens_per_round", ".2f"),
    "accepted": ("acceptance_rate", ".2f"),
    "by position": ("acceptance_by_position", ".2f"),
    "bandwidth": ("bandwidth_share", ".0%"),
    "memory": ("memory_ratio", ".2f"),
    "= hf": ("equal_to_transformers", ".2f"),
    "= plain": ("equal_to_plain", ".2f"),
}
HEADINGS = tuple(_COLUMNS)
ROUND_HEADINGS = (
    *("configuration", "batch", "GB a round", "launches", "replays", "host syncs"),
    *("roofline/s", "tokens/s", "share"),
)
_KEEPS_ALL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
SWEEP_HEADINGS = (
    *("acceptance", "batch", "plain/s", "best fixed", "fixed/s", "adaptive/s", "drafts a round"),
    *("over fixed", "over plain"),
)
LEGEND = (
    "tokens/s: output tokens by the median repeat; spread: (slowest - fastest) / median; x plain: over our plain "
    "decoding at this batch, paired by repeat",
    "ideal: the run's own forwards back to back and nothing else (prefill included); efficiency: their share of time",
    "roofline: tokens/s over those of a GPU that does the same forwards at 90 % of its bandwidth and 70 % of its "
    "compute (benchmarks/roofline/ideal.py)",
    "GB a round: weights, keys and values that its forwards read; launches: operations outside recorded graphs; "
    "replays: of graphs; host syncs: waits for the device (benchmarks/decoder/counts/launches.py); on a CPU, as they "
    "would be on a GPU",
    "a round: output tokens of a row for each target forward; accepted: of all drafted tokens; by position: of those "
    "that follow accepted ones only",
    "bandwidth: time to read the weights as fast as a copy moves bytes (read + written) / time of a plain step; "
    "memory: peak / (weights + KV slots)",
    "= hf, = plain: share of rows that equal transformers' greedy text, and our plain text",
)


def cells(report: Report, result: Result) -> list[str]:
    """Return one row of the table, a cell for each of HEADINGS."""
    found = vars(result) | report.figures(result)
    return [_text(found[name], style) for name, style in _COLUMNS.values()]


def summary(report: Report) -> list[str]:
    """Return the lines above the table."""
    options = report.options
    return [
        f"{report.date}  {report.place}, {options['dtype']}; "
        + ", ".join(f"{k} {v}" for k, v in report.versions.items()),
        f"pair {report.pair['folder']}: target {report.pair['target_bytes'] / 1e6:,.0f} MB, "
        f"draft {report.pair['draft_bytes'] / 1e6:,.0f} MB; corpus {options['corpus']}, "
        f"prompts of {_prompt_lengths(report)} tokens, {options['new_tokens']} new tokens, {_sampling(options)}, "
        f"{options['repeats']} repeats",
        f"memory: copy {report.copy_bandwidth / 1e9:.1f} GB/s (read + written), "
        f"read {report.read_bandwidth / 1e9:.1f} GB/s; a forward reads {report.target_bytes / 1e6:,.0f} MB of weights",
    ]


def round_rows(report: Report) -> list[list[str]]:
    """Return a row for each of our configurations: what a round reads and starts, and the roofline of the run."""
    return [
        [
            result.name,
            str(result.batch),
            _text(result.bytes_per_round and result.bytes_per_round / 1e9, ",.3f"),
            *(_text(count, ",.0f") for count in vars(result.launches_per_round).values()),
            _text(result.roofline_tokens_per_second, ",.1f"),
            _text(result.tokens_per_second, ",.1f"),
            _text(result.roofline_share, ".0%"),
        ]
        for result in report.results
        if result.launches_per_round
    ]


def sweep_rows(reports: Iterable[Report]) -> list[list[str]]:
    """Return a row for each pair and batch: adaptive against the best fixed length and against plain decoding.

    The mean number of draft tokens a row and round, beside the best fixed length, shows whether the schedule drafts too
    little or too much.
    """
    rows: list[list[str]] = []
    for report in reports:
        for adaptive in (result for result in report.results if result.name == "adaptive" and result.seconds):
            plain, fixed = report.find("plain", adaptive.batch), report.best_fixed(adaptive.batch)
            if fixed is None:
                continue
            rows.append(
                [
                    _text(report.pair.get("acceptance"), ".2f"),
                    str(adaptive.batch),
                    _text(plain and plain.tokens_per_second, ",.1f"),
                    fixed.name,
                    _text(fixed.tokens_per_second, ",.1f"),
                    _text(adaptive.tokens_per_second, ",.1f"),
                    _text(adaptive.drafted_per_round, ".2f"),
                    _text(adaptive.speedup(fixed), ".3f"),
                    _text(adaptive.speedup(plain), ".3f"),
                ]
            )
    return rows


def _prompt_lengths(report: Report) -> str:
    tokens = report.prompt_tokens
    return f"{tokens['shortest']} to {tokens['longest']} (mean {tokens['mean']:.0f})"


def _sampling(options: dict[str, Any]) -> str:
    cuts = (f", {name} {options[name]:g}" for name in ("top_p", "top_k", "min_p") if options[name] != _KEEPS_ALL[name])
    return f"temperature {options['temperature']:g}" + "".join(cuts)


def _text(value: Any, style: str) -> str:
    """Return a value in this style; of a value by position, the first four."""
    if isinstance(value, tuple):
        return " ".join(format(part, style).removeprefix("0") for part in value[:4])
    return "" if value is None else format(value, style)
