"""Progress: no long silence, the pace leaves the start out, rows move as texts are written, and lines are narrow."""

import io
from collections.abc import Callable
from itertools import pairwise

import pytest
from rich.console import Console

from actors.run_notes import WrittenText
from jobs.driver.progress import COLUMNS, Progress
from pipeline.counts import Counts
from tests.clock import Clock

UNIT = Counts(num_rows=10, num_generations=10, num_output_tokens=500)
MANY = Counts(
    num_rows=999_000, num_generations=10**9, num_output_tokens=10**12, num_rounds=4 * 10**11, num_draft_tokens=2,
    num_errors=123_456,
)  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., Progress]:
    """Return what makes a display of some rows, whose thread the test takes the place of."""

    def made(num_units: int, num_rows: int, texts_per_row: int = 1, mode: str = "lines") -> Progress:
        progress = Progress(mode, "loading models", clock=clock)  # type: ignore[arg-type]
        progress.planned(num_units, num_rows, texts_per_row)
        return progress

    return made


def test_the_pace_and_the_time_left_count_from_the_first_engine_and_not_from_the_start(clock, make, capsys):
    shown = make(4, 40)
    clock.now = 60.0
    shown.engines_up(1, 2)
    clock.now = 70.0
    shown.add(UNIT)  # 500 tokens in 10 s, after a minute of starting
    clock.now = 75.0
    shown.add(UNIT)  # too soon for another line
    clock.now = 90.0
    shown.engines_up(2, 2)  # later engines do not begin the count anew
    clock.now = 100.0
    shown.add(UNIT)
    assert capsys.readouterr().err.splitlines() == [
        "planned: 4 units, 40 rows",
        "1 of 2 engines up after 1:00",
        "first rows committed after 0:10",
        "2 of 2 engines up after 1:30",
        "30/40 rows  1,500 tokens  38 tokens/s  0:13 left",
    ]


@pytest.mark.parametrize(("num_accepted", "is_doubted"), [(3, True), (300, False)])
def test_a_draft_of_which_hardly_a_token_is_accepted_is_doubted_once(clock, capsys, num_accepted, is_doubted):
    unit = Counts(num_rows=1, num_rounds=1000, num_draft_tokens=4000, num_accepted_tokens=num_accepted)
    for draft, mode in (("org/draft", "lines"), (None, "lines"), ("org/draft", "none")):
        shown = Progress(mode, "loading models", clock=clock)  # type: ignore[arg-type]
        shown.planned(3, 3, 1, draft)
        for _ in range(3):
            shown.add(unit)
        said = " ".join(capsys.readouterr().err.split())
        about = f"of 4,000 tokens that org/draft drafted, {num_accepted} were accepted"
        assert said.count(about) == (is_doubted and draft is not None and mode == "lines")


def test_no_progress_prints_nothing(clock, make, capsys):
    with make(1, 10, mode="none") as shown:
        shown.engines_up(1, 1)
        clock.now = 100.0
        shown.add(UNIT)
    assert capsys.readouterr() == ("", "")


def test_rows_move_as_texts_are_written_and_not_only_with_units(clock, make, capsys):
    shown = make(1, 10, texts_per_row=4)
    shown.engines_up(1, 1)
    clock.now = 20.0
    shown.written(11, 400)
    assert capsys.readouterr().err.splitlines()[-1] == "2/10 rows  400 tokens  20 tokens/s  1:20 left"
    assert shown.left() == (1, 10), "nothing is committed"


def test_no_two_lines_are_more_than_fifteen_seconds_apart_whatever_is_waited_for(clock, capsys):
    times = [0.0]

    def wait(shown: Progress, seconds: int) -> None:
        for _ in range(seconds):
            clock.now += 1.0
            shown.beat()
            times.extend([clock.now] * bool(capsys.readouterr().err))

    for step in ("reading the input", "dividing the input into units"):
        shown = Progress("lines", step, clock=clock)
        shown.say(step)
        wait(shown, 9)
    shown = Progress("lines", "starting Ray", clock=clock)
    shown.planned(2, 20, 1)
    wait(shown, 40)
    shown.say("loading models")
    wait(shown, 100)
    shown.engines_up(1, 2)
    wait(shown, 70)  # reading prompts
    shown.written(1, 100)
    wait(shown, 100)
    shown.add(UNIT)
    wait(shown, 100)
    shown = Progress("lines", "verifying 20 rows", clock=clock)
    shown.say("verifying 20 rows")
    wait(shown, 60)
    assert max(later - earlier for earlier, later in pairwise(times)) <= 15


@pytest.mark.parametrize("width", [40, 62, COLUMNS])
def test_a_line_of_a_large_run_is_as_narrow_as_is_asked_and_still_has_rows_and_time(clock, make, width):
    shown = make(10**6, 10**6)
    shown.engines_up(64, 64)
    clock.now = 360_000.0
    shown.add(MANY)
    assert len(line := shown.line(width)) <= width
    assert line.startswith("999,000/1,000,000 rows  ")
    assert line.endswith("6:00 left")


@pytest.mark.parametrize("width", [1, 12, 26])
def test_a_terminal_that_is_too_narrow_for_a_step_still_shows_a_bar(clock, width):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with Progress("bar", "reading the models' files and the input", console=console, clock=clock) as shown:
        shown.say("loading")


def test_what_is_noted_is_wrapped_at_eighty_columns_without_losing_a_word(make, capsys):
    said = "Ray joined at 10.0.0.1:6379 (`ray start` started it on this machine; RAY_ADDRESS=local begins another)"
    make(1, 1).note(said)
    lines = capsys.readouterr().err.splitlines()[1:]
    assert " ".join(lines) == said
    assert max(map(len, lines)) <= COLUMNS


def test_a_terminal_of_eighty_columns_has_a_bar_and_above_it_the_first_text_once(clock, capsys):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with Progress("auto", "loading models", console=console, clock=clock) as shown:
        shown.planned(1, 10, 1)
        shown.engines_up(1, 1)
        clock.now = 5.0
        shown.written(1, 100, WrittenText("questions.jsonl#7", "Say it", "It is said.\x1b[2J"))
        shown.written(2, 200, WrittenText("questions.jsonl#8", "Say it again", "Again."))
    printed = screen.getvalue()
    assert printed.count("row questions.jsonl#7") == 1
    assert "It is said.␛[2J" in printed
    assert "questions.jsonl#8" not in printed
    assert "2/10 rows" in printed
    assert "━" in printed
    assert capsys.readouterr().err == ""
