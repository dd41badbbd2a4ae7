"""`jobs.retry`: failed rows become what a first success would have written, and nothing else changes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs import generate, retry, verify
from pipeline.run.directory import RunDirectory
from pipeline.run.lease import hold_lease
from tests.jobs.faulty_retry import RETRY_POINTS, fails_over, retry_dies_at_every_point, retry_dies_over
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts, wait_until, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]
FLAGS = ("--sampling.n=2", "--run.seed=3", "--run.max_error_rate=1")


def input_rows() -> list[Any]:
    """Return 28 rows for units of 8: unit 0 has one unlucky row, unit 2 two; unit 1 has two bad rows, unit 2 one."""
    rows: list[Any] = prompts(28)
    for index in (2, 17, 19):
        rows[index] = {"id": f"row-{index}", "kind": "a", "prompt": f"unlucky hello {index}"}
    rows[9] = "{not json"
    rows[12] = {"id": "empty", "kind": "a", "prompt": ""}
    rows[20] = {"id": "no-prompt", "kind": "a"}
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, text_pair: Pair, ray_address: str) -> Path:
    """Return a folder with in.jsonl, the run undisturbed/ and the run failed/, in which three unlucky rows failed."""
    folder = tmp_path_factory.mktemp("retry")
    source = write_jsonl(folder / "in.jsonl", input_rows())
    assert generate.main(arguments(source, folder / "undisturbed", text_pair, *FLAGS)) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "Generator", fails_over("unlucky"))
        assert generate.main(arguments(source, folder / "failed", text_pair, *FLAGS)) == 0
    assert [row["id"] for row in errors(folder / "failed")] == [
        *("row-2", None, "empty", "row-17", "row-19", "no-prompt")
    ]
    return folder


@pytest.fixture
def output(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of the run in which rows failed."""
    shutil.copytree(folder / "failed", tmp_path / "out")
    return tmp_path / "out"


def command(folder: Path, output: Path, pair: Pair, *more: str) -> list[str]:
    return arguments(folder / "in.jsonl", output, pair, *FLAGS, *more)


def rows_without_counts_of_work(output: Path) -> list[dict[str, Any]]:
    """Return what the target wrote, without drafts and rounds, which depend on the other rows of the batch."""
    work = ("num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position", "num_cached_tokens")
    return [{name: value for name, value in row.items() if name not in work} for row in generations(output)]


def test_retried_rows_equal_those_of_a_run_without_failures(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    before = commits(output)
    changed = ("--engine.num_slots=3", "--actors.units_in_flight=1", "--engine.drafter=ngram")
    stages = ("--stage=generate", "--stage=read")
    assert retry.main(command(folder, output, text_pair, *stages, *changed)) == 0
    assert "retried: 5 rows; now succeed: 3; still fail: 2" in capsys.readouterr().out
    assert content(output) == content(folder / "undisturbed")
    assert rows_without_counts_of_work(output) == rows_without_counts_of_work(folder / "undisturbed")
    assert [(row["id"], row["stage"], row["attempt"]) for row in errors(output)] == [
        (None, "read", 1),
        ("empty", "encode", 0),
        ("no-prompt", "read", 1),
    ]
    after = commits(output)
    assert {name for name in before if before[name] != after[name]} == {
        "part-000000000.parquet",
        "part-000000002.parquet",
    }
    assert problems(output) == []
    assert (output / "_SUCCESS").exists()
    report = json.loads((output / "report.json").read_text())
    assert (report["complete"], report["counts"]["num_errors"], report["counts"]["num_rows"]) == (True, 3, 28)
    assert verify.main([str(output)]) == 0

    assert generate.main(command(folder, output, text_pair)) == 0
    assert commits(output) == after
    assert "Nothing left to do" in capsys.readouterr().out
    (output / "_SUCCESS").unlink()
    assert generate.main(command(folder, output, text_pair)) == 0
    assert commits(output) == after


def test_a_dry_run_lists_what_failed_and_writes_nothing(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert retry.main(command(folder, output, text_pair, "--dry-run", "--error-type", "KeyError")) == 0
    printed = capsys.readouterr().out
    assert "no luck" in printed
    assert "JSONDecodeError" in printed
    assert "6 rows failed; 1 of them, in 1 units, would be tried again" in printed
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_nothing_happens_if_no_failed_row_matches(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    before = commits(output)
    assert retry.main(command(folder, output, text_pair, "--error_type=WorkerDied")) == 0
    assert "Nothing to try again: none of the failed rows is asked for." in capsys.readouterr().out
    assert commits(output) == before
    assert (output / "_SUCCESS").exists()


def test_a_run_without_success_mark_is_verified_even_if_no_row_matches(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "_SUCCESS").unlink()
    assert retry.main(command(folder, output, text_pair, "--stage=params")) == 0
    assert (output / "_SUCCESS").exists()
    (output / "_SUCCESS").unlink()
    (output / "data/part-000000003.parquet").unlink()
    assert retry.main(command(folder, output, text_pair, "--stage=params")) == 3
    assert "1 units of the run were never finished: python -m jobs.generate goes on" in capsys.readouterr().err
    assert not (output / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sampling.temperature=0.5", "  sampling.temperature: was 1.0, is 0.5"),
        ("--run.seed=4", "  seed: was 3, is 4"),
        ("--stage=reading", "stage.0: input should be 'read', 'template'"),
        ("--error_types=KeyError", "did you mean --error-type?"),
        ("--stages=read", "--stages is a section; set its fields, such as --stages.count"),
        ("--output.path=/nowhere/at/all", "no run here; python -m jobs.generate makes one"),
    ],
)
def test_flags_that_would_change_tokens_or_make_no_sense_are_refused(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str], flag: str, message: str
) -> None:
    before = commits(output)
    assert retry.main(command(folder, output, text_pair, flag)) == 2
    assert message in capsys.readouterr().err
    assert commits(output) == before


def test_a_second_driver_and_a_damaged_errors_file_print_one_line_each(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    with hold_lease(RunDirectory.open(str(output))):
        assert retry.main(command(folder, output, text_pair)) == 1
    assert "error: another driver works on this run" in capsys.readouterr().err
    part = output / "errors/part-000000002.parquet"
    part.write_bytes(part.read_bytes()[:-3])
    assert retry.main(command(folder, output, text_pair)) == 1
    assert "errors/part-000000002.parquet: damaged" in capsys.readouterr().err


def test_help_describes_the_command_and_its_own_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        retry.main(["--help"])
    assert ended.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Runs the rows in errors/ of a corpus again, and only those." in printed
    assert "--stage" in printed
    assert "--error_type" in printed
    assert "such as WorkerDied" in printed


def test_the_error_for_too_many_failed_rows_names_the_retry_command(
    folder: Path, output: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "_SUCCESS").unlink()
    assert retry.main(command(folder, output, text_pair, "--stage=params", "--run.max_error_rate=0.1")) == 1
    assert "`python -m jobs.retry` runs the failed rows again" in capsys.readouterr().err
    assert not (output / "_SUCCESS").exists()


@pytest.mark.slow
def test_a_retry_that_dies_at_every_point_of_a_unit_changes_nothing(
    tmp_path: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row
        for k in range(len(RETRY_POINTS))
        for row in (
            *prompts(2),
            {"id": f"unlucky-{k}", "kind": "a", "prompt": f"unlucky hello {k}"},
            {"id": f"bad-{k}", "kind": "a"},
        )
    ]
    source, undisturbed, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "undisturbed", tmp_path / "out"
    flags = ("--run.rows_per_unit=4", "--actors.units_in_flight=1", "--engine.num_slots=1", "--run.max_error_rate=1")
    assert generate.main(arguments(source, undisturbed, text_pair, *flags)) == 0
    monkeypatch.setattr(generate, "Generator", fails_over("unlucky"))
    assert generate.main(arguments(source, output, text_pair, *flags)) == 0
    assert len(errors(output)) == 2 * len(RETRY_POINTS)
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setattr(retry, "RetryGenerator", retry_dies_at_every_point(deaths))
    assert retry.main(arguments(source, output, text_pair, *flags)) == 0
    assert sorted(path.name for path in deaths.iterdir()) == sorted(f"{p} {k}" for k, p in enumerate(RETRY_POINTS))
    assert content(output) == content(undisturbed)
    assert [row["id"] for row in errors(output)] == [f"bad-{k}" for k in range(len(RETRY_POINTS))]
    assert problems(output) == []
    printed = capsys.readouterr()
    assert f"now succeed: {len(RETRY_POINTS)}; still fail: {len(RETRY_POINTS)}" in printed.out
    assert "worker processes died over units" in printed.err


@pytest.mark.slow
def test_a_row_that_kills_its_process_stays_an_error_row_and_its_neighbours_come_through(
    folder: Path, output: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RetryGenerator", retry_dies_over("unlucky hello 17"))
    assert retry.main(command(folder, output, text_pair)) == 0
    dead = {row["id"]: (row["stage"], row["error_type"], row["attempt"]) for row in errors(output)}
    assert dead["row-17"] == ("generate", "WorkerDied", 1)
    assert sorted(map(str, dead)) == ["None", "empty", "no-prompt", "row-17"]
    expected = [row for row in rows_without_counts_of_work(folder / "undisturbed") if row["id"] != "row-17"]
    assert rows_without_counts_of_work(output) == expected
    assert problems(output) == []
    monkeypatch.undo()
    assert retry.main(command(folder, output, text_pair, "--error-type=WorkerDied")) == 0
    assert content(output) == content(folder / "undisturbed")


@pytest.mark.slow
def test_a_stopped_or_killed_retry_can_be_resumed(
    tmp_path: Path, text_pair: Pair, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"row-{k}", "kind": "a", "prompt": f"{'unlucky' if k % 2 else 'lucky'} {k}"} for k in range(96)]
    source, undisturbed, output = write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "undisturbed", tmp_path / "out"
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=4", "--actors.units_in_flight=1", "--run.max_error_rate=1")
    assert generate.main(arguments(source, undisturbed, text_pair, *slow)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(generate, "Generator", fails_over("unlucky"))
        assert generate.main(arguments(source, output, text_pair, *slow)) == 0
    first = commits(output)
    command = [sys.executable, "-m", "jobs.retry", *arguments(source, output, text_pair, *slow)]
    command.append(f"--run.ray_address={ray_address}")
    said = _begin_and_end(command, output, signal.SIGTERM, 3)
    assert "the same command goes on with what is left in errors/" in said
    assert list((output / "errors").iterdir()), "it was done before it could be stopped: make the run longer"
    _begin_and_end(command, output, signal.SIGKILL, -signal.SIGKILL)
    assert retry.main(arguments(source, output, text_pair, *slow)) == 0
    assert content(output) == content(undisturbed)
    assert errors(output) == []
    assert all(first[name] != commits(output)[name] for name in first)


def _begin_and_end(command: list[str], output: Path, sent: signal.Signals, code: int) -> str:
    """Return the stderr of a driver that gets a signal after its first unit and ends with this code."""
    num_left = len(list((output / "errors").iterdir()))
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(list((output / "errors").iterdir())) < num_left or driver.poll() is not None)
    os.kill(driver.pid, sent)
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == code, said
    assert not (output / "_SUCCESS").exists()
    assert problems(output) == []
    return said
