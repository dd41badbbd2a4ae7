"""Progress of a command: a bar that stays at the bottom of a terminal, else lines at fixed times.

It says which step is under way, then rows, tokens and the time left, by what engines have written, also of units that
are not committed. A terminal is never without a sign of life, and no two lines are more than ten seconds apart.

Tokens a second and the time left are those since the first engine was up: starting Ray and loading models is no pace.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from textwrap import fill, shorten
from threading import RLock
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from actors.heartbeat import Heartbeat
from actors.run_notes import WrittenText
from jobs.names import WHOLE_WORDS
from jobs.report_page.numbers import format_length
from jobs.report_page.texts import text_to_show
from pipeline.counts import Counts

COLUMNS = 80  # of a line
_SECONDS_BETWEEN_LINES = 10.0
BETWEEN_BEATS_S = 1.0
_BAR_COLUMNS = 16
_FEWEST_COLUMNS = 8  # of a step, on a terminal that is too narrow for it
_READING = "reading prompts and writing the first texts"
_FEWEST_DRAFTED = 500  # tokens of a draft, before it may be doubted
_RARELY = 0.01  # the acceptance rate below which it is
Mode = Literal["auto", "bar", "lines", "none"]


class Progress:
    """A display of the step that is under way, and of rows, tokens and the time left. A context manager."""

    def __init__(
        self, mode: Mode, step: str, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with a step, such as "reading the input", and nothing to do."""
        self.console = console or Console(stderr=True)
        self.mode = ("bar" if self.console.is_terminal else "lines") if mode == "auto" else mode
        self._clock, self._lock = clock, RLock()
        self._step = step
        self._started = self._began = self._last_line = clock()  # of all, of the step, and of the newest line
        self._up_since: float | None = None  # since when an engine is up
        self._num_units = self._num_rows = self._texts_per_row = 0
        self._num_done, self._counts = 0, Counts()
        self._num_texts = self._num_tokens = 0  # that engines wrote, those that were lost among them
        self._first_text: WrittenText | None = None
        self._draft: str | None = None
        self._bar = Bar(
            BarColumn(bar_width=_BAR_COLUMNS),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),  # else what is printed into a file would go to the terminal
        )
        self._task = self._bar.add_task(step, total=None)
        self._heartbeat = Heartbeat(self.beat, BETWEEN_BEATS_S)

    def __enter__(self) -> Progress:
        if self.mode == "bar":
            self._bar.start()
        self._heartbeat.start()
        self.say(self._step)
        return self

    def __exit__(self, *exception: object) -> None:
        self._heartbeat.end()
        if self.mode == "bar":
            self._bar.stop()

    def say(self, step: str) -> None:
        """Show a step of the start, in place of the one before it on a terminal."""
        with self._lock:
            self._step, self._began = step, self._clock()
            self.note(f"{step} ...")
            self.beat()

    def note(self, text: str) -> None:
        """Print a line, where there is no bar."""
        with self._lock:
            if self.mode == "lines":
                self._last_line = self._clock()
                print(fill(text, COLUMNS, **WHOLE_WORDS), file=sys.stderr, flush=True)

    def planned(self, num_units: int, num_rows: int, texts_per_row: int, draft: str | None = None) -> None:
        """Take what this command has to do. `texts_per_row` is 0 if that is not known before.

        `draft` is the draft model or head, whose acceptance is watched.
        """
        with self._lock:
            self._draft = None if self.mode == "none" else draft
            self._num_units, self._num_rows, self._texts_per_row = num_units, num_rows, texts_per_row
            self.note(f"planned: {num_units:,} units, {num_rows:,} rows")

    def engines_up(self, num_up: int, num_wanted: int) -> None:
        """Show how many engines have loaded their models; the pace counts from the first one."""
        with self._lock:
            now = self._clock()
            self.note(f"{num_up} of {num_wanted} engines up after {format_seconds(now - self._started)}")
            if self._up_since is None:
                self._up_since, self._step, self._began = now, _READING, now
            self.beat()

    def add(self, counts: Counts) -> None:
        """Add the counts of a unit that is done."""
        with self._lock:
            self._num_done += 1
            self._counts += counts
            if self._num_done == 1:
                self.note(f"first rows committed after {format_seconds(self._clock() - self._begin_of_work)}")
            self._doubt_draft()
            self.beat()

    def _doubt_draft(self) -> None:
        """Print, once, that hardly a token of the draft is accepted. The text is right all the same."""
        counts = self._counts
        if self._draft and counts.num_draft_tokens >= _FEWEST_DRAFTED and (counts.acceptance_rate or 0) < _RARELY:
            self.console.print(
                f"warning: of {counts.num_draft_tokens:,} tokens that {self._draft} drafted, "
                f"{counts.num_accepted_tokens:,} were accepted. The text is right, and the draft is of no use: it may "
                "belong to another target or to other prompts, or it is read wrongly (quantized weights, features of "
                "other layers). `dray tune` measures others, and engine.drafter: none leaves it out",
                highlight=False,
                markup=False,
            )
            self._draft = None

    def written(self, num_texts: int, num_tokens: int, first_text: WrittenText | None = None) -> None:
        """Show how many texts and tokens the engines have written since they were loaded, and the first text, once."""
        with self._lock:
            self._num_texts, self._num_tokens = num_texts, num_tokens
            if first_text is not None and self._first_text is None:
                self._first_text = first_text
                self.console.print(text_to_show(first_text))
            self.beat()

    def beat(self) -> None:
        """Show the state; as a line, if the last one is ten seconds old."""
        with self._lock:
            if self.mode == "bar":
                width, total = self.console.width - _BAR_COLUMNS - 2, self._num_rows if self._is_writing else None
                self._bar.update(self._task, description=self.line(width), completed=self._rows_done, total=total)
            elif self._clock() - self._last_line >= _SECONDS_BETWEEN_LINES:
                self.note(self.line())

    def left(self) -> tuple[int, int]:
        """Return the units and the rows that are not committed yet."""
        return self._num_units - self._num_done, self._num_rows - self._counts.num_rows

    def line(self, width: int = COLUMNS) -> str:
        """Return the state as one line; what matters least is left out where there is no room."""
        if not self._is_writing:
            taken = f" ({format_seconds(self._clock() - self._began)})"
            return shorten(self._step, max(width - len(taken), _FEWEST_COLUMNS), placeholder=" ...") + taken
        counts, done, seconds = self._counts, self._rows_done, max(self._clock() - self._begin_of_work, 1e-9)
        num_tokens = max(self._num_tokens, counts.num_output_tokens)
        parts = {
            "rows": f"{done:,}/{self._num_rows:,} rows",
            "tokens": f"{_short(num_tokens)} tokens",
            "pace": f"{_short(round(num_tokens / seconds))} tokens/s",
            "length": f"{format_length(counts.mean_acceptance_length)} a round" if counts.num_draft_tokens else "",
            "failed": f"{counts.num_errors:,} failed" if counts.num_errors else "",
            "left": f"{format_seconds(seconds / done * (self._num_rows - done)) if done else '?'} left",
        }
        for name in ("length", "tokens", "failed", "pace"):
            if len(text := "  ".join(filter(None, parts.values()))) <= width:
                return text
            del parts[name]
        return "  ".join(parts.values())

    @property
    def _is_writing(self) -> bool:
        return bool(self._num_done or self._num_tokens or self._num_texts)

    @property
    def _begin_of_work(self) -> float:
        return self._began if self._up_since is None else self._up_since

    @property
    def _rows_done(self) -> int:
        """Rows that are written, as far as that is known: a row whose process died is written twice."""
        written = self._num_texts // self._texts_per_row if self._texts_per_row else 0
        return min(self._num_rows, max(self._counts.num_rows, written))


def _short(number: int) -> str:
    """Return a number with its thousands apart, a large one in millions."""
    return f"{number:,}" if number < 10**7 else f"{number / 10**6:,.1f}M"


def format_seconds(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
