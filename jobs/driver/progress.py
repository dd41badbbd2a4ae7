"""Progress of a run as text: one line that moves on a terminal, else a line for each step of the start and then one
every ten seconds, also while no unit is committed.

Tokens a second and the time left are those since the first engine was up: starting Ray and loading models is no pace.
"""

from __future__ import annotations

import sys
import time
from typing import Literal

from rich.console import Console
from rich.live import Live
from rich.text import Text

from jobs.report_page.numbers import format_length, format_rate
from pipeline.counts import Counts

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """A display of units, rows, tokens per second, acceptance, errors and the time left. A context manager."""

    def __init__(self, num_units: int, num_rows: int, mode: Literal["auto", "bar", "lines", "none"]) -> None:
        """Begin with nothing done of the `num_units` and `num_rows` that this command has to do."""
        console = Console(stderr=True)
        self._mode = ("bar" if console.is_terminal else "lines") if mode == "auto" else mode
        self._live = Live(console=console, refresh_per_second=4, transient=True) if self._mode == "bar" else None
        self._num_units, self._num_rows = num_units, num_rows
        self._started = self._last_line = time.monotonic()
        self._up_since: float | None = None  # since when an engine is up
        self._num_done, self._counts = 0, Counts()
        self._num_texts = self._num_tokens = 0  # that engines wrote, those that were lost among them

    def __enter__(self) -> Progress:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        """Show a step of the start, in place of the one before it on a terminal."""
        if self._live:
            self._live.update(Text(text), refresh=True)
        elif self._mode == "lines":
            print(text, file=sys.stderr, flush=True)

    def engines_up(self, num_up: int, num_wanted: int) -> None:
        """Show how many engines have loaded their models; the pace counts from the first one."""
        now = time.monotonic()
        self._up_since = self._up_since or now
        if not self._num_done:
            self._last_line = now
            self.say(f"{num_up} of {num_wanted} engines up after {format_seconds(now - self._started)}")

    def add(self, counts: Counts) -> None:
        """Add the counts of a unit that is done."""
        self._num_done += 1
        self._counts += counts
        is_first = self._num_done == 1
        self._show(f"first rows after {format_seconds(time.monotonic() - self._started)}: " if is_first else "")

    def written(self, num_texts: int, num_tokens: int) -> None:
        """Show how many texts and tokens the engines have written since they were loaded."""
        self._num_texts, self._num_tokens = num_texts, num_tokens
        self._show()

    def _show(self, news: str = "") -> None:
        """Show the state, if there is `news` or the last line is old."""
        now = time.monotonic()
        line = self.line(now - (self._up_since or self._started))
        if self._live:
            self._live.update(Text(line))
        elif news or now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            self.say(f"{news}{line}")

    def left(self) -> tuple[int, int]:
        """Return the units and the rows that this command still has to do."""
        return self._num_units - self._num_done, self._num_rows - self._counts.num_rows

    def line(self, seconds: float) -> str:
        """Return the state as one line, `seconds` after the first engine was up."""
        counts = self._counts
        left = seconds / counts.num_rows * (self._num_rows - counts.num_rows) if counts.num_rows else None
        num_tokens = max(self._num_tokens, counts.num_output_tokens)
        parts = [
            f"{self._num_done}/{self._num_units} units",
            f"{counts.num_rows}/{self._num_rows} rows",
            f"{max(self._num_texts, counts.num_generations):,} texts written",
            f"{num_tokens:,} tokens",
            f"{num_tokens / max(seconds, 1e-9):,.0f} tokens/s",
            f"acceptance rate {format_rate(counts.acceptance_rate)}",
            f"mean acceptance length {format_length(counts.mean_acceptance_length)}",
            f"{counts.num_errors} errors",
            f"{'?' if left is None else format_seconds(left)} left",
        ]
        return "  ".join(parts)


def format_seconds(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
