"""A row that is a program: its text is a function of target, program, row, seed and what its tools answered."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.programs.program import Program
from actors.programs.program_rows import ProgramRow, ProgramRows
from actors.programs.settings import ProgramSettings
from actors.programs.tool_record import folder_of
from actors.workers.loading import LoadedEngine
from actors.workers.row_kind import PlainRows
from pipeline.errors import RowError
from pipeline.run.directory import RunDirectory
from tests.actors.programs import some_programs
from tests.endpoint.in_process import settings_of
from tests.pipeline.made_up import committed_run, input_row

MODULE = "tests.actors.programs.some_programs"
ROWS = [input_row(prompt=text, overrides={"max_tokens": 12}) for text in ("hello world", "one two", "a text")]
Written = list[dict[str, Any]]


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    """A run whose folder takes what tools have answered."""
    return committed_run(tmp_path / "run")


@pytest.fixture(scope="module")
def engines(text_pair: tuple[str, str]) -> Callable[..., LoadedEngine]:
    """Engines by their options, each loaded once."""
    loaded: dict[str, LoadedEngine] = {}

    def load(**options: Any) -> LoadedEngine:
        key = repr(sorted(options.items()))
        if key not in loaded:
            loaded[key] = LoadedEngine(settings_of(text_pair, **options), None, 60.0)
        return loaded[key]

    return load


async def finished(rows: Any, encoded: list[Any]) -> list[Any]:
    await rows.finish(encoded)
    return encoded


def write(
    name: str, run_directory: RunDirectory, engine: LoadedEngine, text_pair: tuple[str, str], **options: Any
) -> tuple[ProgramRows, list[ProgramRow]]:
    """Run a program over the rows."""
    settings = ProgramSettings(function=f"{MODULE}:{name}", **options)
    rows = ProgramRows(settings, settings_of(text_pair), run_directory, engine.loop, engine.codec)
    encoded = [rows.encode(row, ordinal) for ordinal, row in enumerate(ROWS)]
    return rows, asyncio.run(finished(rows, encoded))


def decoded(rows: ProgramRows, encoded: list[ProgramRow]) -> list[Written]:
    """The generation rows, without what the pace of the engine decides."""
    paced = ("num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position", "num_cached_tokens")
    made = [rows.decode(row) for row in encoded]
    return [[{name: value for name, value in each.items() if name not in paced} for each in row] for row in made]


def test_a_program_of_one_turn_writes_what_the_row_would_write_without_it(run_directory, engines, text_pair) -> None:
    engine = engines()
    rows, encoded = write("one_turn", run_directory, engine, text_pair)
    plain = PlainRows(settings_of(text_pair), engine.loop, engine.codec)
    expected = asyncio.run(finished(plain, [plain.encode(row, ordinal) for ordinal, row in enumerate(ROWS)]))
    for row, plain_row in zip(encoded, expected, strict=True):
        (generation,), (other,) = rows.decode(row), plain.decode(plain_row)
        assert [generation[name] for name in ("prompt", "text", "token_ids")] == [
            other[name] for name in ("prompt", "text", "token_ids")
        ]
        assert (generation["num_turns"], generation["result"], generation["tool_results"]) == (1, None, [])


@pytest.mark.parametrize("name", ["chat_with_tools", "side_by_side"])
def test_the_text_does_not_depend_on_slots_or_drafts(tmp_path, engines, text_pair, name, monkeypatch) -> None:
    texts = []
    for number, options in enumerate(({"num_slots": 1}, {"num_slots": 7}, {"num_slots": 3, "drafter": "none"})):
        monkeypatch.setattr(some_programs, "NUM_CALLS", 0)
        monkeypatch.setattr(some_programs, "ticket", lambda prefix: f"{prefix}-always")
        monkeypatch.setattr(some_programs, "PACE", (1, 3, 5)[number])
        rows, encoded = write(name, committed_run(tmp_path / str(number)), engines(**options), text_pair)
        texts.append(decoded(rows, encoded))
    assert texts[0] == texts[1] == texts[2]
    first = texts[0][0][0]
    assert first["num_turns"] == len(first["turns"]) == (2 if name == "chat_with_tools" else 8)
    assert len(first["token_ids"]) == sum(turn["num_output_tokens"] for turn in first["turns"])


def test_a_turn_reads_only_what_is_new_since_the_one_before(run_directory, engines, text_pair) -> None:
    _, encoded = write("goes_on", run_directory, engines(num_slots=4), text_pair)
    for row in encoded:
        first, second, third = (sequence for sequence, _ in row.samples[0].conversation.generations())
        for before, after in ((first, second), (second, third)):
            assert after.num_cached_tokens >= len(before.prompt_token_ids)


def test_turns_of_equal_prompts_have_noise_of_their_own(run_directory, engines, text_pair) -> None:
    rows, encoded = write("side_by_side", run_directory, engines(), text_pair)
    begun = list(encoded[0].samples[0].conversation.generations())
    assert len({sequence.noise_key for sequence, _ in begun}) == len(begun) == 8
    assert rows.decode(encoded[0])


def test_a_repeated_row_meets_the_same_results_of_its_tools_until_its_unit_is_committed(
    run_directory, engines, text_pair
) -> None:
    first, second = (
        decoded(*write("chat_with_tools", run_directory, engines(num_slots=slots), text_pair)) for slots in (4, 1)
    )
    assert first == second
    assert [result["name"] for result in first[0][0]["tool_results"]] == ["ticket", "echo"]
    num_calls = some_programs.NUM_CALLS
    rows, _ = write("chat_with_tools", run_directory, engines(), text_pair)
    assert num_calls == some_programs.NUM_CALLS
    folder = folder_of(run_directory, ROWS[0].row_id >> 32)
    rows.committed(ROWS[0].row_id >> 32, {77})
    assert folder.list(), "results of rows that failed stay"
    rows.committed(ROWS[0].row_id >> 32, {ROWS[0].row_id})
    assert folder.list() == []
    write("chat_with_tools", run_directory, engines(), text_pair)
    assert num_calls < some_programs.NUM_CALLS


def test_a_program_may_catch_what_cannot_be_run_and_go_on(run_directory, engines, text_pair) -> None:
    rows, encoded = write("catches", run_directory, engines(), text_pair)
    (generation,) = rows.decode(encoded[0])
    assert generation["text"].startswith("after all: ")
    assert generation["num_turns"] == 1


WRONG = {
    "raises": ("program", "the program failed: 'nothing there' (line "),
    "tool_raises": ("program", "the program failed: 'x' is an invalid keyword argument for int() (line "),
    "says_nothing": ("program", "the program ended without a single generation"),
    "never_ends": ("program", "the program asked for more than 5 generations, program.max_turns"),
    "gives_up_early": ("program", "the program failed: "),
    "returns_a_set": ("program", "the program returned what JSON cannot hold: "),
    "tool_returns_bytes": ("program", "the result of the tool 'bytes' must be what JSON can hold: "),
    "asks_for_many": ("params", "generate: n is one for all turns"),
    "asks_for_heat": ("params", "sampling.temperature must"),
    "asks_for_unknown": ("params", "unknown sampling parameters ['warmth']"),
    "asks_with_a_list": ("params", "generate: sampling: expected an object, got list"),
    "empty_messages": ("template", "messages: the list is empty"),
    "number_as_prompt": ("template", "messages: expected a list, got int"),
    "tools_for_a_text": ("params", "generate: tools are for messages"),
    "too_long": ("generate", "the prompt has"),
    "in_two_tasks": ("program", "generate is used in two tasks; give each task a conversation of its own"),
    "leaves_one_behind": ("program", "the program ended while a generation went on"),
    "cancels_one": ("program", "the program cancelled a generation"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_program_that_goes_wrong_makes_an_error_row_that_says_how(run_directory, engines, text_pair, name) -> None:
    stage, message = WRONG[name]
    rows, encoded = write(name, run_directory, engines(), text_pair, max_turns=5)
    with pytest.raises(RowError) as caught:
        rows.decode(encoded[1])
    assert caught.value.stage == stage
    assert message in caught.value.message


def test_a_program_that_takes_too_long_makes_an_error_row(run_directory, engines, text_pair) -> None:
    rows, encoded = write("waits", run_directory, engines(), text_pair, timeout_s=0.2)
    with pytest.raises(RowError, match=r"took more than program\.timeout_s, 0\.2 s"):
        rows.decode(encoded[0])


def test_a_tool_that_hangs_blocks_nothing_else(run_directory, engines, text_pair) -> None:
    _, encoded = write("calls_what_hangs", run_directory, engines(), text_pair, timeout_s=0.2)
    assert all("timeout_s" in str(row.samples[0].error) for row in encoded)
    rows, encoded = write("chat_with_tools", run_directory, engines(), text_pair)
    assert rows.decode(encoded[0])


def test_samples_of_a_row_do_not_see_what_others_have_changed(run_directory, engines, text_pair) -> None:
    settings = ProgramSettings(function=f"{MODULE}:changes_its_row")
    rows = ProgramRows(settings, settings_of(text_pair), run_directory, engines().loop, engines().codec)
    row = rows.encode(input_row(prompt="a", overrides={"n": 3}, columns={"notes": ["first"]}), 0)
    asyncio.run(finished(rows, [row]))
    assert [each["result"] for each in rows.decode(row)] == ["2", "2", "2"]
    assert row.row.columns == {"notes": ["first"]}


def test_a_worker_whose_program_is_not_that_of_the_run_refuses_to_begin(tmp_path, engines, text_pair) -> None:
    run_directory = committed_run(tmp_path / "run")
    run_directory.run["identity"]["program"] = {"function": "a:b", "source": "0"}
    with pytest.raises(ValueError, match="is not what it was when the run began"):
        write("one_turn", run_directory, engines(), text_pair)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere", "must be 'module:function', got 'nowhere'"),
        ("a b:c", "must be 'module:function'"),
        ("no_such_module_here:row", "the module 'no_such_module_here' cannot be imported (ModuleNotFoundError"),
        (f"{MODULE}:nothing", "the module has no 'nothing'"),
        (f"{MODULE}:not_async", "expected `async def not_async(generate, row)`"),
        (f"{MODULE}:NUM_CALLS", "expected `async def NUM_CALLS(generate, row)`"),
        (f"{MODULE}:one_argument", "it is called with two arguments, generate and row"),
    ],
)
def test_what_is_no_program_is_refused_by_name(function: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        Program.load(str(ProgramSettings(function=function).function))
    assert message in str(caught.value)


@pytest.mark.parametrize("values", [{"max_turns": 0}, {"timeout_s": 0}])
def test_limits_of_a_program_are_above_zero(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be (at least|above)"):
        ProgramSettings(**values)
