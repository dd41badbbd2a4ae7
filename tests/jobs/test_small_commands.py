"""verify and export on a finished run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import export, verify
from tests.jobs.runs import generations


@pytest.fixture
def output(plain_run: Path) -> Path:
    """Return a run of 30 generated rows and one that could not be read."""
    return plain_run / "out"


def test_verify_accepts_a_complete_run_and_prints_its_hash(output, capsys):
    assert verify.main([str(output), "--hash"]) == 0
    printed = capsys.readouterr().out
    assert "OK: 4 units, 31 rows, each in data or in errors exactly once" in printed
    assert "content " in printed


def test_verify_refuses_a_folder_without_a_run(tmp_path, capsys):
    assert verify.main([str(tmp_path)]) == 2
    assert "no run here" in capsys.readouterr().err


def test_the_export_has_one_line_for_every_input_row(output, tmp_path):
    file = tmp_path / "batch.jsonl"
    assert export.main([str(output), str(file), "--model", "mine"]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(30)] + [None]
    assert lines[0]["response"]["body"]["model"] == "mine"
    assert lines[0]["response"]["body"]["choices"][0]["message"]["content"] == generations(output)[0]["text"]
    assert lines[-1]["error"]["code"] == "invalid_request"
    assert export.main([str(output), str(file)]) == 0
    named = json.loads((output / "run.json").read_text())["settings"]["models"]["target"]
    assert json.loads(file.read_text().splitlines()[0])["response"]["body"]["model"] == named


def test_an_incomplete_run_is_not_exported(output, tmp_path):
    incomplete = tmp_path / "out"
    shutil.copytree(output, incomplete)
    (incomplete / "data/part-000000000.parquet").unlink()
    assert export.main([str(incomplete), str(tmp_path / "batch.jsonl")]) == 1
    assert not (tmp_path / "batch.jsonl").exists()


def test_plain_lines_hold_every_generation_and_failed_rows_go_to_a_second_file(output, tmp_path, capsys):
    file = tmp_path / "out.jsonl"
    assert export.main([str(output), str(file), "--format", "jsonl"]) == 0
    assert capsys.readouterr().out == f"30 generations in {file}; 1 failed rows are in {tmp_path}/out.errors.jsonl\n"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["id"], line["text"], line["kind"]) for line in lines] == [
        (row["id"], row["text"], row["kind"]) for row in generations(output)
    ]
    (failed,) = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_text().splitlines()]
    assert (failed["stage"], failed["row_number"]) == ("read", 30)
    assert export.main([str(output), str(file), "--format=jsonl", f"--errors={tmp_path}/failed"]) == 0
    assert (tmp_path / "failed").read_text() == (tmp_path / "out.errors.jsonl").read_text()


def test_plain_lines_go_through_a_pipe_without_failed_rows(output):
    command = [sys.executable, "-m", "jobs.export", str(output), "/dev/stdout", "--format=jsonl"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [f"row-{i}" for i in range(30)]
    assert "1 failed rows are left out; --errors FILE writes them" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format=jsonl", "--model=mine"], "--model is for --format openai-batch"),
        (["--errors=e.jsonl"], "--errors is for --format jsonl"),
        (["--format=jsonl", "--errors=./out.jsonl"], "named both for generations and for rows that failed"),
        (["--format=jsonl", "--errors=what://ever"], "cannot open 'what://ever'"),
        (["--format=jsonl", "--errors=e.Parquet"], "e.Parquet has the name of a Parquet file"),
    ],
)
def test_contradictory_export_options_are_refused(output, capsys, options, message):
    assert export.main([str(output), "out.jsonl", *options]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("form", ["jsonl", "openai-batch"])
def test_json_lines_are_not_written_to_a_file_named_as_parquet(output, tmp_path, capsys, form):
    file = tmp_path / "out.parquet"
    assert export.main([str(output), str(file), f"--format={form}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file} has the name of a Parquet file, and this command writes JSON lines")
    assert not file.exists()
