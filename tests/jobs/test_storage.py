"""Messages of the commands about a second driver, a lost lease and damaged files, which need no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs import generate, verify
from jobs.config.run import load_config
from jobs.driver.plan import create_run, make_plan
from pipeline.counts import Counts
from pipeline.run.directory import RunDirectory
from pipeline.run.lease import hold_lease
from tests.jobs.runs import arguments, prompts, write_jsonl
from tests.pipeline.made_up import committed_run

Pair = tuple[str, str]


@pytest.fixture
def command(tmp_path: Path, text_pair: Pair) -> list[str]:
    """Return the command line of a small run whose directory exists."""
    source = write_jsonl(tmp_path / "in.jsonl", prompts(9))
    command = arguments(source, tmp_path / "out", text_pair, "--models.device=cpu")
    config = load_config(command, prog="test")
    create_run(make_plan(config, "cpu"), config)
    return command


def test_a_second_driver_ends_with_one_line_that_names_the_first(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory = RunDirectory.open(str(tmp_path / "out"))
    with hold_lease(run_directory) as lease:
        assert generate.main(command) == generate.Exit.FAILED
        assert f"error: another driver works on this run (host {lease.holder.host}, pid" in capsys.readouterr().err
        assert generate.main([*command, "--dry-run"]) == generate.Exit.COMPLETE
        assert verify.main([str(tmp_path / "out")]) == 1
        lease.refuse_if_lost()


def test_a_driver_that_lost_its_lease_stops_at_the_next_unit(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def lose_the_lease_after_a_unit(*_: Any) -> Iterator[Counts]:
        yield Counts(num_rows=8)
        taken.append(1)
        lease_of_this_driver[0].lost_to = "host other, pid 5"
        yield Counts(num_rows=1)
        pytest.fail("went on without its lease")

    lease_of_this_driver: list[Any] = []
    run_alone = generate._run_alone

    def remember_the_lease(*values: Any) -> Any:
        lease_of_this_driver.append(values[-1])
        return run_alone(*values)

    monkeypatch.setattr(generate, "_generate", lose_the_lease_after_a_unit)
    monkeypatch.setattr(generate, "_run_alone", remember_the_lease)
    assert generate.main(command) == generate.Exit.FAILED
    assert "went to host other, pid 5. It stops here; what is committed stays" in capsys.readouterr().err
    assert taken == [1]


def test_verify_names_damaged_files_and_repair_moves_them_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory = committed_run(tmp_path / "run")
    part = Path(run_directory.part_path(0).path)
    part.write_bytes(part.read_bytes()[:-7])
    path = str(tmp_path / "run")
    assert verify.main([path]) == 1
    assert "1 files are damaged or foreign; --repair moves them to quarantine/" in capsys.readouterr().out
    assert part.exists()
    with hold_lease(run_directory):
        assert verify.main([path, "--repair"]) == 1
    assert "error: another driver works on this run" in capsys.readouterr().err
    assert part.exists()
    assert verify.main([path, "--repair"]) == 1
    printed = capsys.readouterr().out
    assert (
        "moved to quarantine/data/part-000000000.parquet (why: quarantine/data/part-000000000.parquet.json)" in printed
    )
    assert "unit 0 (rows 0 on of prompts.jsonl) is missing; run again" in printed
    assert [unit.unit_id for unit in run_directory.missing_units()] == [0]


def test_a_damaged_manifest_prints_one_line_that_names_the_part(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (part,) = (tmp_path / "out" / "manifest").iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    assert verify.main([str(tmp_path / "out")]) == 1
    assert f"{part.name}: damaged" in capsys.readouterr().err
    assert generate.main(command) == generate.Exit.BAD_CONFIGURATION
    assert f"{part.name}: damaged" in capsys.readouterr().err


def test_an_empty_part_is_moved_away_and_its_unit_is_done_again(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = []

    def note_what_is_missing(*values: Any) -> Iterator[Counts]:
        missing.extend(unit.unit_id for unit in values[-1])
        yield from (Counts() for _ in missing)

    (tmp_path / "out" / "data" / "part-000000001.parquet").write_bytes(b"")
    monkeypatch.setattr(generate, "_generate", note_what_is_missing)
    assert generate.main(command) == generate.Exit.FAILED
    assert missing == [0, 1]
    assert "quarantine/data/part-000000001.parquet: was too short to be a part" in capsys.readouterr().out
