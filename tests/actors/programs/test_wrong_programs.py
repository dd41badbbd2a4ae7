"""A program that goes wrong makes an error row that says how, and its neighbours are what they are without it."""

import asyncio
import inspect

import pytest
import uvloop

from pipeline.errors import RowError
from pipeline.inputs.rows import InputRow
from tests.actors.programs import hostile_programs
from tests.actors.programs.hostile_programs import HOSTILE
from tests.actors.programs.running import Written, decoded, write
from tests.actors.programs.wrong_programs import WRONG
from tests.pipeline.made_up import committed_run, input_row

PROGRAM = "tests.actors.programs.hostile_programs:hostile"
TIMED = "waits"  # only its time ends it: it has a test of its own
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}  # Ray's workers take uvloop


def beside(does: str) -> list[InputRow]:
    """A row whose program does this, between two that are sound."""
    each = (("hello world", "one_turn"), ("one two", does), ("a text", "one_turn"))
    return [input_row(prompt=text, overrides={"max_tokens": 12}, columns={"does": name}) for text, name in each]


@pytest.fixture(scope="module")
def sound(tmp_path_factory, engines, text_pair) -> list[Written]:
    """What the neighbours write beside a third sound row."""
    run_directory = committed_run(tmp_path_factory.mktemp("sound") / "run")
    return decoded(*write(PROGRAM, run_directory, engines(), text_pair, beside("one_turn")))[::2]


@pytest.mark.parametrize("name", [name for name in WRONG if name != TIMED])
def test_a_program_that_goes_wrong_makes_an_error_row_that_says_how(run_directory, engines, text_pair, sound, name):
    rows, encoded = write(PROGRAM, run_directory, engines(), text_pair, beside(name), max_turns=5)
    with pytest.raises(RowError) as caught:
        rows.decode(encoded[1])
    stage, words = WRONG[name]
    assert caught.value.stage == stage
    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert decoded(rows, encoded[::2]) == sound


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_program_ends_the_event_loop_of_its_worker(run_directory, engines, text_pair, sound, name, new_loop):
    rows, encoded = write(PROGRAM, run_directory, engines(), text_pair, beside(name), new_loop)
    if (words := HOSTILE[name]) is None:
        assert len(rows.decode(encoded[1])) == 1
    else:
        with pytest.raises(RowError) as caught:
            rows.decode(encoded[1])
        assert caught.value.stage == "program"
        assert words in caught.value.message
        assert "\n" not in caught.value.message
    assert decoded(rows, encoded[::2]) == sound


def test_the_error_row_names_the_line_on_which_a_task_has_exited(run_directory, engines, text_pair):
    rows, encoded = write(PROGRAM, run_directory, engines(), text_pair, beside("exits_in_a_task"))
    lines = inspect.getsource(hostile_programs).splitlines()
    with pytest.raises(RowError, match=rf"\(line {1 + lines.index('    raise SystemExit(5)')} of "):
        rows.decode(encoded[1])


def test_a_program_reads_of_the_exit_where_it_awaits_the_task(run_directory, engines, text_pair):
    rows, encoded = write(PROGRAM, run_directory, engines(), text_pair, beside("catches_the_exit_of_a_task"))
    (generation,) = rows.decode(encoded[1])
    assert generation["text"] == "a task of the program raised SystemExit: 5"
