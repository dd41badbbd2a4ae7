"""The end of a run: texts on a terminal, and where the report is."""

from pathlib import Path
from typing import Any

import pytest

from actors.run_notes import WrittenText
from jobs.config.run import RunSettings
from jobs.driver import summary
from jobs.driver.summary import print_ending
from jobs.report_page import texts
from jobs.report_page.texts import samples, shortened
from pipeline.run.directory import RunDirectory
from tests.pipeline.made_up import RUN, commit_rows, error, generation, unit


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run of nine units with one row each, of which the last has failed."""
    units = [unit(number, num_rows=1) for number in range(9)]
    run = RunDirectory.create(str(tmp_path / "run"), RUN, units)
    for each in units[:-1]:
        commit_rows(run, each, [generation(each.row_id(0), prompt="Say it", text=f"text {each.unit_id}")], [])
    commit_rows(run, units[-1], [], [error(units[-1], 0)])
    return run


def test_the_texts_are_spread_over_the_run_and_the_same_at_each_call(run):
    assert [sample.text for sample in samples(run, 3)] == ["text 1", "text 4", "text 7"]
    assert [sample.text for sample in samples(run, 9)] == [f"text {number}" for number in range(8)]  # one row failed
    assert list(samples(run, 0)) == []


def test_no_text_is_printed_where_the_output_is_no_terminal(run, capsys):
    print_ending(run, RunSettings())
    assert capsys.readouterr().out == ""


def test_texts_are_printed_on_a_terminal_or_when_asked_for(run, capsys, monkeypatch):
    print_ending(run, RunSettings(show_texts=1))
    assert capsys.readouterr().out.split("\n") == ["row user-17179869184", "> Say it", "text 4", "", ""]
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes any output for a terminal
    print_ending(run, RunSettings())
    assert "text 1" in capsys.readouterr().out
    print_ending(run, RunSettings(show_texts=0))
    assert capsys.readouterr().out == ""


def test_the_page_of_a_report_is_named_before_its_figures(run, capsys):
    run.write_report({"complete": True})
    print_ending(run, RunSettings())
    assert capsys.readouterr().out == f"report: {run.location.path}/report.json\n"
    (Path(run.location.path) / "report.html").write_text("<p>")
    print_ending(run, RunSettings())
    assert capsys.readouterr().out == f"report: {run.location.path}/report.html\n"


def test_a_long_text_is_cut_and_cannot_control_the_terminal():
    assert shortened("one\ntwo\n\nfour\nfive") == "one\ntwo\n\nfour ..."
    assert shortened("x" * 300) == "x" * 280 + " ..."
    assert shortened(" short \n") == "short"
    assert shortened("\x1b[2Jgone") == "\u241b[2Jgone"


def test_a_text_keeps_its_tabs_and_spaces_and_is_cut_by_the_columns_that_it_fills():
    assert shortened("a\tb\u00a0c\u3000d") == "a\tb\u00a0c\u3000d"
    assert shortened("\u6f22" * 150) == "\u6f22" * 140 + " ..."
    assert shortened("e\u0301" * 280) == "e\u0301" * 280


def test_a_text_of_characters_that_fill_no_column_is_cut_as_well():
    assert len(shortened("a" + "\u0301" * 300_000)) < 1200
    assert shortened("a" + "\t" * 300 + "b") == "a ..."
    assert len(shortened("a" + "\u200b" * 100_000 + "b")) < 1200


def test_a_generated_text_cannot_send_a_terminal_a_command(run, capsys, monkeypatch):
    hostile = WrittenText("1", "\x1b]0;title\x07 \x9b2J", "\x1b[31mred\x1b[0m\r\x08 \u202e[bold]b[/bold]")
    monkeypatch.setattr(summary, "samples", lambda *_: [hostile])
    print_ending(run, RunSettings(show_texts=1))
    printed = capsys.readouterr().out
    assert not set(printed) & set("\x1b\x07\x9b\r\x08\u202e")
    assert "\u241b[31mred\u241b[0m\u240d\u2408 \ufffd[bold]b[/bold]" in printed


def test_texts_that_cannot_be_read_do_not_fail_a_run_that_is_complete(run, capsys, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the storage does not answer")

    monkeypatch.setattr(texts, "read_unit_rows", fail)
    print_ending(run, RunSettings(show_texts=2))
    assert capsys.readouterr().err == "note: its texts cannot be shown: the storage does not answer\n"
