"""`run.reuse` and `dray diff`: old texts are drafts of a new run, whose texts are what they would be without them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from jobs import diff, generate, retry
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import make_plan
from jobs.runs.difference import pairs_of
from pipeline.run.directory import RunDirectory
from pipeline.run.earlier_rows import EarlierRows
from tests.jobs.runs import arguments, content, generations, prompts, write_jsonl

ROWS = [*prompts(20), {"id": "too long", "kind": "a", "prompt": "hello " * 400}]
GREEDY = ("--run.local", "--sampling.temperature=0")


def write(folder: Path, pair: tuple[str, str], rows: list[Any], *flags: str, name: str = "out") -> Path:
    folder.mkdir(exist_ok=True)
    command = arguments(write_jsonl(folder / "in.jsonl", rows), folder / name, pair, *flags)
    assert generate.main(command) == 0
    return folder / name


@pytest.fixture(scope="module")
def old(tmp_path_factory, text_pair) -> Path:
    """A run that tests only read."""
    return write(tmp_path_factory.mktemp("old"), text_pair, ROWS, *GREEDY, "--engine.drafter=suffix")


def edited() -> list[Any]:
    """The rows in another order, some with another prompt, one less and two more."""
    rows = [dict(row) for row in reversed(ROWS) if row["id"] != "row-5"]
    for row in rows:
        if row["id"] in ("row-1", "row-7"):
            row["prompt"] = "three small words"
        if row["id"] == "row-9":
            row["sampling"] = {"max_tokens": 15}
    return [*rows, {"id": "new", "kind": "b", "prompt": "one"}, {"id": "newer", "kind": "b", "prompt": "two"}]


def test_the_texts_are_those_of_a_run_anew_and_each_row_says_what_was_reused(old, text_pair, tmp_path, capsys):
    longer = (*GREEDY, "--sampling.max_tokens=20")
    anew = write(tmp_path / "anew", text_pair, edited(), *longer, "--engine.drafter=none")
    capsys.readouterr()
    fixed = "--engine.draft_length=fixed"  # so that the number of rounds does not depend on times
    run = write(tmp_path / "new", text_pair, edited(), *longer, fixed, f"--run.reuse={old}")
    assert content(run) == content(anew)
    assert re.search(r"0 unchanged, 19 changed, 2 new", capsys.readouterr().out.replace("\n", " "))
    rows = {row["id"]: row for row in generations(run)}
    plain = {row["id"]: row["token_ids"] for row in generations(old)}
    for name, row in rows.items():
        if name in ("new", "newer"):
            assert row["num_earlier_tokens"] is row["num_unchanged_tokens"] is row["num_reused_tokens"] is None
            continue
        assert row["num_earlier_tokens"] == 12
        same = row["token_ids"][:12] == plain[name]
        assert same == (name not in ("row-1", "row-7")), "rows are found by their ids, wherever they stand"
        assert (row["num_unchanged_tokens"] == 12) == same
        assert row["num_reused_tokens"] >= row["num_unchanged_tokens"]
    assert rows["row-3"]["num_rounds"] < 12 < len(rows["row-3"]["token_ids"])
    report = json.loads((run / "report.json").read_text())
    assert report["reuse"]["num_changed"] == 19
    assert report["reuse"]["num_reused_tokens"] >= 17 * 12


def test_samples_have_the_texts_of_the_same_samples(text_pair, tmp_path):
    flags = ("--run.local", "--sampling.temperature=0.8", "--models.draft=" + text_pair[1])
    first = write(tmp_path / "first", text_pair, prompts(4), *flags, "--sampling.n=2")
    run = write(tmp_path / "second", text_pair, prompts(4), *flags, "--sampling.n=3", f"--run.reuse={first}")
    for row in generations(run):
        assert row["num_unchanged_tokens"] == (row["num_output_tokens"] if row["sample"] < 2 else None)
    assert RunDirectory.open(str(run)).run["settings"]["engine"]["drafter"] == "hybrid"
    pairs = list(pairs_of(RunDirectory.open(str(first)), RunDirectory.open(str(run))))
    assert [pair.what for pair in pairs] == ["same", "same", "only in the second"] * 4


def test_a_run_that_reuses_texts_goes_on_and_is_retried_with_them_or_without(old, text_pair, tmp_path):
    flags = (*GREEDY, "--engine.draft_length=fixed")
    run = write(tmp_path / "new", text_pair, ROWS, *flags, f"--run.reuse={old}")
    whole = content(run)
    for more in ((f"--run.reuse={old}",), ()):
        (run / "data" / "part-000000001.parquet").unlink()
        command = arguments(tmp_path / "new" / "in.jsonl", run, text_pair, *flags, *more)
        assert generate.main(command) == 0
        assert content(run) == whole == content(old)
        assert retry.main(command) == 0
    second = [row["num_earlier_tokens"] for row in generations(run)[8:16]]
    assert second == [None] * 8, "this time without them"


def test_rows_do_not_fail_where_the_earlier_run_is_damaged(old, text_pair, tmp_path):
    damaged = Path(shutil.copytree(old, tmp_path / "damaged"))
    (damaged / "data" / "part-000000000.parquet").write_bytes(b"no parquet")
    run = write(tmp_path / "new", text_pair, ROWS, *GREEDY, f"--run.reuse={damaged}")
    assert content(run) == content(old)
    assert [row["num_earlier_tokens"] for row in generations(run)] == [None] * 8 + [12] * 12


def test_rows_without_ids_are_found_by_the_name_of_their_file_and_their_number(text_pair, tmp_path):
    rows = [{name: value for name, value in row.items() if name != "id"} for row in prompts(10)]
    flags = [*GREEDY, "--input.id_column=kind"]
    first = write(tmp_path / "first", text_pair, rows, *flags)
    run = write(tmp_path / "second", text_pair, rows, *flags, f"--run.reuse={first}")
    assert [row["num_unchanged_tokens"] for row in generations(run)] == [12] * 10
    earlier = EarlierRows(RunDirectory.open(str(first)), ["text"])
    assert earlier.find("b", "/elsewhere/in.jsonl", 9) == (1 << 32) + 1, "many rows have this id"
    assert earlier.find("no such id", "/elsewhere/in.jsonl", 9) is None
    assert earlier.find(None, "/elsewhere/other.jsonl", 9) is None
    assert earlier.find(None, "/elsewhere/in.jsonl", 10) is None
    assert earlier.samples(99 << 32) == []


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--engine.verification=rejection"], "bend the distribution"),
        (["--engine.drafter=none"], "engine.drafter is 'none', which looks nothing up"),
        (["--engine.drafter=model"], "engine.drafter is 'model', which looks nothing up"),
        (["--models.draft=[suffix,ngram]"], "of which a trial takes one"),
        (["--program.function=a.b:c"], "it has program.function"),
        (["--run.reuse=nowhere"], "no run here"),
    ],
)
def test_what_cannot_be_reused_is_refused_by_name_before_anything_is_loaded(old, text_pair, flags, why):
    command = arguments(old.parent / "in.jsonl", old.parent / "new", text_pair, f"--run.reuse={old}", *flags)
    with pytest.raises(ValueError, match=re.escape(why)):
        make_plan(load(RunConfig, command, prog="test"))


def test_a_run_does_not_reuse_its_own_texts(old, text_pair):
    command = arguments(old.parent / "in.jsonl", old, text_pair, *GREEDY, f"--run.reuse={old}")
    with pytest.raises(ValueError, match="it is the run itself"):
        make_plan(load(RunConfig, command, prog="test"))


def test_texts_of_another_tokenizer_are_refused(old, text_pair, tmp_path):
    shutil.copytree(text_pair[0], tmp_path / "target")
    tokenizer = json.loads((tmp_path / "target" / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:3]
    (tmp_path / "target" / "tokenizer.json").write_text(json.dumps(tokenizer))
    pair = (str(tmp_path / "target"), text_pair[1])
    command = arguments(old.parent / "in.jsonl", tmp_path / "out", pair, *GREEDY, f"--run.reuse={old}")
    with pytest.raises(ValueError, match="its tokenizer is another one"):
        make_plan(load(RunConfig, command, prog="test"))


def test_a_dry_run_says_what_is_reused_and_what_was_changed(old, text_pair, tmp_path, capsys):
    source, output = old.parent / "in.jsonl", tmp_path / "out"
    flags = ("--run.local", "--sampling.temperature=0.3", f"--run.reuse={old}", "--dry-run")
    assert generate.main(arguments(source, output, text_pair, *flags)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"reuses: texts of {old}; sampling.temperature: was 0.0, is 0.3" in printed
    assert "drafter hybrid" in printed


@pytest.mark.ray
def test_texts_are_reused_on_ray(old, text_pair, tmp_path, ray_address):
    flags = ("--sampling.temperature=0", f"--run.reuse={old}", f"--run.ray_address={ray_address}")
    run = write(tmp_path / "new", text_pair, ROWS, *flags)
    assert content(run) == content(old)
    assert {row["num_unchanged_tokens"] for row in generations(run)} == {12}


def changed_run(old: Path, text_pair: tuple[str, str], tmp_path: Path) -> Path:
    flags = ("--run.local", "--sampling.temperature=0", "--engine.drafter=none")
    return write(tmp_path / "changed", text_pair, edited(), *flags)


def test_a_diff_names_all_texts_that_changed_and_no_other(old, text_pair, tmp_path, capsys):
    run = changed_run(old, text_pair, tmp_path)
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert diff.main([str(old), str(run), "--by=kind", f"--html={page}"]) == 1
    printed = capsys.readouterr().out
    assert re.findall(r"^(row-\d+), sample 0, token", printed, re.MULTILINE) == ["row-9", "row-7", "row-1"]
    totals = [cell.strip() for cell in next(line for line in printed.splitlines() if "│ all" in line).split("│")[1:-1]]
    assert totals[:5] == ["all", "16", "3", "1", "2"]
    tokens = {row["id"]: row["token_ids"] for row in generations(old)}
    now = {row["id"]: row["token_ids"] for row in generations(run)}
    places = dict(re.findall(r"^(row-\d+), sample 0, token (\d+)", printed, re.MULTILINE))
    for name, place in places.items():
        same = [one == other for one, other in zip(tokens[name], now[name], strict=False)]
        assert int(place) == (same.index(False) if False in same else len(same))
    assert places["row-9"] == "12"
    html = page.read_text()
    assert html.count('<details class="sample"') == 3
    assert 'class="rejected"' in html
    assert 'class="corrected"' in html
    assert diff.main([str(old), str(old)]) == 0
    assert diff.main([str(old), str(tmp_path / "nothing")]) == 2
    assert diff.main([str(old), str(run), "--by=nothing"]) == 2
    assert diff.main([str(old), str(old), "--by=finish_reason"]) == 0
    second = RunDirectory.open(str(run))
    second.run["identity"]["tokenizer"] = "another"
    with pytest.raises(ValueError, match=r"the tokenizers of .* differ"):
        next(pairs_of(RunDirectory.open(str(old)), second))
