"""What the page says is what the run holds, and no text of a run becomes a part of the page."""

import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from jobs import report, show
from jobs.report_page.facts import gather
from jobs.report_page.page import page_of
from jobs.report_page.samples import codec_or_why_not, read_samples
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from tests.jobs.report_page.conftest import ATTACKS
from tests.jobs.report_page.made_run import made_run
from tests.jobs.runs import generations, prompts
from tests.pipeline.made_up import RUN, commit_rows, committed_run, error, sound_rows, unit

LOADS = ("src", "srcset", "data", "poster", "background", "action", "formaction", "ping", "codebase", "manifest")


class _Page(HTMLParser):
    """The elements of a page, what they would load, and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.loaded: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.ids: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            is_local = (value or "").startswith("#")
            if name in LOADS or name.startswith("on") or (name in ("href", "xlink:href") and not is_local):
                self.loaded.append((tag, name, value or ""))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def text(hostile_run: RunDirectory) -> str:
    return page_of(hostile_run)


def test_the_run_of_these_tests_is_sound_and_its_sample_has_every_row(hostile_run):
    check = check_run(hostile_run)
    assert (check.problems, check.counts.num_rows, check.counts.num_errors) == ([], 22, 2)
    rows = generations(Path(hostile_run.location.path))
    assert all(row["draft_rounds"] is not None for row in rows), "fewer than 50 rows are all in the sample"


def test_the_page_loads_nothing_and_runs_nothing(text):
    page = _Page(text)
    assert page.loaded == []
    assert page.tags["script"] == page.tags["img"] == page.tags["link"] == page.tags["iframe"] == 0
    assert not re.search(r"@import|url\((?!#)", text), "a style sheet loads nothing, either"
    assert "default-src 'none'" in text


def test_no_text_of_a_row_becomes_an_element(text):
    page = _Page(text)
    said = "".join(page.texts)
    for attack in ATTACKS:
        assert attack in said, "it is there as the text that it is"
    assert "</table><script>alert(1)</script>" not in text
    assert "{{ 7 * 7 }}" in said
    assert [name for name, number in page.ids.items() if number > 1] == []


def test_the_page_has_the_numbers_of_the_run(hostile_run, text):
    counts = check_run(hostile_run).counts
    facts = gather(hostile_run)
    assert facts.by == ("kind",)
    assert facts.whole.counts == replace(counts, num_rows=20, num_errors=0)
    assert f"<dd>{counts.num_output_tokens:,}</dd>" in text
    assert f"<dd>{counts.acceptance_rate:.3f}</dd>" in text
    assert facts.finish_reasons.total() == counts.num_generations
    recorded = facts.whole.rounds
    assert recorded.total == counts.num_rounds
    assert recorded.mean_length == pytest.approx(counts.mean_acceptance_length)
    assert sum(drafted * number for (drafted, _), number in recorded.num_rounds.items()) == counts.num_draft_tokens
    assert facts.timeline.working_seconds == pytest.approx(7.5, abs=0.01)
    assert facts.peak_memory == {"one": 10**9}


def test_pieces_of_every_sample_are_its_text(hostile_run):
    codec, _ = codec_or_why_not(hostile_run)
    assert codec is not None
    samples = read_samples(hostile_run, codec, ())
    assert len(samples) == 22
    assert [sample.row["stage"] for sample in samples if sample.is_error] == ["read", "read"]
    for sample in samples:
        if not sample.is_error:
            kept = "".join(piece.text for piece in sample.pieces if piece.mark != "rejected")
            assert kept == codec.of_all_tokens.decode(sample.row["token_ids"])
    assert any(piece.mark == "rejected" for sample in samples for piece in sample.pieces)


def test_a_run_in_progress_has_a_page_of_what_is_committed(tmp_path, capsys):
    run_directory = made_run(tmp_path, prompts(60), without=[1, 5], costs=(0.010, 0.013, 0.014, 0.016, 0.030))
    assert report.main([run_directory.location.path, "--html"]) == 0
    assert capsys.readouterr().out.strip() == f"{run_directory.location.path}/report.html"
    text = (tmp_path / "out/report.html").read_text()
    assert "6 of 8 units committed" in text
    assert "What a draft length is worth" in text, "the costs that the engine measured"
    assert "an estimate: explained below" in text
    recorded = [row for row in generations(tmp_path / "out") if row["draft_rounds"] is not None]
    assert 30 <= len(recorded) <= 44, "50 of 60 rows are in the sample, and two units are missing"
    assert [problem for problem in check_run(run_directory).problems if "draft_rounds" in problem] == []


def test_a_part_that_cannot_be_read_is_named_and_the_others_are_shown(hostile_run, tmp_path):
    shutil.copytree(hostile_run.location.path, tmp_path / "run")
    (tmp_path / "run/data/part-000000001.parquet").write_bytes(b"PAR1 and no more")
    shutil.rmtree(tmp_path / "run/_tmp")  # as in a run that was copied from a store
    assert report.main([str(tmp_path / "run"), "--html"]) == 0
    facts = gather(RunDirectory.open(str(tmp_path / "run")))
    assert facts.num_committed == 2
    assert facts.notes == ["part 1 could not be read (ArrowInvalid); dray verify says more"]


def test_without_its_tokenizer_a_run_has_a_page_that_says_so(hostile_run, monkeypatch):
    monkeypatch.setitem(hostile_run.run, "models", {"target": "/nowhere/at/all"})
    text = page_of(hostile_run)
    assert "shown without marks: the tokenizer is not to be had here" in text
    assert '<mark class="accepted">' not in text
    assert "Once upon" in text


def test_an_unknown_column_is_refused_by_name(hostile_run, capsys):
    assert report.main([hostile_run.location.path, "--html", "--by", "colour"]) == 2
    assert "the output has no column 'colour'" in capsys.readouterr().err


def test_show_prints_a_row_by_its_own_id_with_marks_that_need_no_colour(hostile_run, capsys):
    name = f"row-3 {ATTACKS[3]}"
    assert show.main([hostile_run.location.path, "--row", name, "--sample", "1"]) == 0
    out = capsys.readouterr().out
    assert "sample 1" in out
    assert "sample 0" not in out
    assert "\x1b" not in out, "a terminal would obey a control character of a prompt"
    assert "␛[31m" in out
    rows = ds.dataset(f"{hostile_run.location.path}/data").to_table().to_pylist()
    (row,) = [row for row in rows if row["id"] == name and row["sample"] == 1]
    assert f"{row['num_rounds']}; {row['num_accepted_tokens']} of {row['num_draft_tokens']} drafted" in out
    assert ("[-" in out) == any(each["rejected_token_ids"] for each in row["draft_rounds"])
    assert "[[" in out


def test_show_prints_a_row_that_failed(hostile_run, capsys):
    assert show.main([hostile_run.location.path, "--row", "bad"]) == 0
    out = capsys.readouterr().out
    assert "failed at    read, " in out
    assert "in.jsonl#21" in out


def test_show_takes_a_row_by_its_file_and_number(hostile_run, capsys):
    assert show.main([hostile_run.location.path, "--row", "in.jsonl#4", "--sample", "1"]) == 0
    out = capsys.readouterr().out
    assert "Row row-3 " in out
    assert "row-4 " not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--row", "in.jsonl#99"], "no row 'in.jsonl#99'"),
        (["--row", "nobody"], "no row 'nobody': its ids are such as "),
        (["--row", "99"], "no row '99'"),
        (["--row", "0", "--sample", "2"], "has 2 samples, 0 to 1; there is no sample 2"),
    ],
)
def test_show_says_what_is_not_there(hostile_run, capsys, flags, message):
    assert show.main([hostile_run.location.path, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_unit_whose_rows_have_all_failed_is_a_part_of_the_page(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(0), unit(1)])
    commit_rows(run, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    commit_rows(run, unit(1), [], [error(unit(1), index) for index in range(3)])
    text = page_of(run)
    assert "3 of them failed" in text
    assert "2 of 2 units committed" in text


def test_no_throughput_is_drawn_from_the_times_of_files_and_nothing_is_called_predicted_without_rounds(tmp_path):
    text = page_of(committed_run(tmp_path / "run"))
    assert "times were not recorded" in text
    assert "Throughput" not in text
    assert "first unit begun" not in text
    assert "Predicted" not in text
