"""A row that is a program: its text is a function of target, program, row, seed and what its tools answered."""

import asyncio

import pytest

from actors.programs.program_rows import ProgramRows
from actors.programs.tool_calls import folder_of
from actors.rows.plain import PlainRows
from actors.settings import ProgramSettings
from pipeline.errors import RowError
from tests.actors.programs import some_programs
from tests.actors.programs.running import ROWS, SOME, decoded, finished, write
from tests.endpoint.in_process import settings_of
from tests.pipeline.made_up import committed_run, input_row


def test_a_program_of_one_turn_writes_what_the_row_would_write_without_it(run_directory, engines, text_pair):
    engine = engines()
    rows, encoded = write(f"{SOME}:one_turn", run_directory, engine, text_pair)
    plain = PlainRows(engine.settings, engine.loop.engine, engine.codec, engine.loop.finish)
    expected = asyncio.run(finished(plain, [plain.encode(row, ordinal) for ordinal, row in enumerate(ROWS)]))
    for row, plain_row in zip(encoded, expected, strict=True):
        (generation,), (other,) = rows.decode(row), plain.decode(plain_row)
        assert [generation[name] for name in ("prompt", "text", "token_ids")] == [
            other[name] for name in ("prompt", "text", "token_ids")
        ]
        assert (generation["num_turns"], generation["result"], generation["tool_results"]) == (1, None, [])


@pytest.mark.parametrize("name", ["chat_with_tools", "side_by_side"])
def test_the_text_does_not_depend_on_slots_or_drafts(tmp_path, engines, text_pair, name, monkeypatch):
    texts = []
    for number, options in enumerate(({"num_slots": 1}, {"num_slots": 7}, {"num_slots": 3, "drafter": "none"})):
        monkeypatch.setattr(some_programs, "NUM_CALLS", 0)
        monkeypatch.setattr(some_programs, "ticket", lambda prefix: f"{prefix}-always")
        monkeypatch.setattr(some_programs, "PACE", (1, 3, 5)[number])
        rows, encoded = write(f"{SOME}:{name}", committed_run(tmp_path / str(number)), engines(**options), text_pair)
        texts.append(decoded(rows, encoded))
    assert texts[0] == texts[1] == texts[2]
    first = texts[0][0][0]
    assert first["num_turns"] == len(first["turns"]) == (2 if name == "chat_with_tools" else 8)
    assert len(first["token_ids"]) == sum(turn["num_output_tokens"] for turn in first["turns"])


def test_a_turn_reads_only_what_is_new_since_the_one_before(run_directory, engines, text_pair):
    _, encoded = write(f"{SOME}:goes_on", run_directory, engines(num_slots=4), text_pair)
    for row in encoded:
        first, second, third = (event[0] for event in row.samples[0].conversation.events() if isinstance(event, tuple))
        for before, after in ((first, second), (second, third)):
            assert after.num_cached_tokens >= len(before.prompt_token_ids)


def test_turns_of_equal_prompts_have_noise_of_their_own(run_directory, engines, text_pair):
    rows, encoded = write(f"{SOME}:side_by_side", run_directory, engines(), text_pair)
    begun = [event for event in encoded[0].samples[0].conversation.events() if isinstance(event, tuple)]
    assert len({sequence.noise_key for sequence, _ in begun}) == len(begun) == 8
    assert rows.decode(encoded[0])


def test_a_repeated_row_meets_the_same_results_of_its_tools_until_its_unit_is_committed(
    run_directory, engines, text_pair
):
    name = f"{SOME}:chat_with_tools"
    first, second = (decoded(*write(name, run_directory, engines(num_slots=slots), text_pair)) for slots in (4, 1))
    assert first == second
    assert [result["name"] for result in first[0][0]["tool_results"]] == ["ticket", "echo"]
    num_calls = some_programs.NUM_CALLS
    rows, _ = write(name, run_directory, engines(), text_pair)
    assert num_calls == some_programs.NUM_CALLS
    folder = folder_of(run_directory, ROWS[0].row_id >> 32)
    rows.committed(ROWS[0].row_id >> 32, {77})
    assert folder.list(), "results of rows that failed stay"
    rows.committed(ROWS[0].row_id >> 32, {ROWS[0].row_id})
    assert folder.list() == []
    write(name, run_directory, engines(), text_pair)
    assert num_calls < some_programs.NUM_CALLS


def test_a_program_may_catch_what_cannot_be_run_and_go_on(run_directory, engines, text_pair):
    rows, encoded = write(f"{SOME}:catches", run_directory, engines(), text_pair)
    (generation,) = rows.decode(encoded[0])
    assert generation["text"].startswith("after all: ")
    assert generation["num_turns"] == 1


def test_a_program_that_takes_too_long_makes_an_error_row(run_directory, engines, text_pair):
    rows, encoded = write(
        "tests.actors.programs.wrong_programs:waits", run_directory, engines(), text_pair, timeout_s=0.2
    )
    with pytest.raises(RowError, match=r"took more than program\.timeout_s, 0\.2 s"):
        rows.decode(encoded[0])


def test_a_tool_that_hangs_blocks_nothing_else(run_directory, engines, text_pair):
    _, encoded = write(f"{SOME}:calls_what_hangs", run_directory, engines(), text_pair, timeout_s=0.2)
    assert all("timeout_s" in str(row.samples[0].error) for row in encoded)
    rows, encoded = write(f"{SOME}:chat_with_tools", run_directory, engines(), text_pair)
    assert rows.decode(encoded[0])


def test_samples_of_a_row_do_not_see_what_others_have_changed(run_directory, engines, text_pair):
    settings = ProgramSettings(function=f"{SOME}:changes_its_row")
    rows = ProgramRows(settings, settings_of(text_pair), run_directory, engines().loop, engines().codec)
    row = rows.encode(input_row(prompt="a", overrides={"n": 3}, columns={"notes": ["first"]}), 0)
    asyncio.run(finished(rows, [row]))
    assert [each["result"] for each in rows.decode(row)] == ["2", "2", "2"]
    assert row.row.columns == {"notes": ["first"]}


def test_a_worker_whose_program_is_not_that_of_the_run_refuses_to_begin(tmp_path, engines, text_pair):
    run_directory = committed_run(tmp_path / "run")
    run_directory.run["identity"]["program"] = {"function": "a:b", "source": "0"}
    with pytest.raises(ValueError, match="is not what it was when the run began"):
        write(f"{SOME}:one_turn", run_directory, engines(), text_pair)


@pytest.mark.parametrize("values", [{"max_turns": 0}, {"timeout_s": 0}])
def test_limits_of_a_program_are_above_zero(values):
    with pytest.raises(ValueError, match=r"must be (at least|above)"):
        ProgramSettings(**values)
