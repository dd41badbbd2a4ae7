"""A run directory is created whole, refuses what would change its tokens, and touches nothing foreign."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.inputs.units import WorkUnit
from pipeline.run.check import check_run
from pipeline.run.commit import read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.manifest import ManifestSummary
from pipeline.storage.whole_file import create_file
from tests.pipeline.made_up import RUN, commit_rows, committed_run, put, sound_rows, unit

_PART = "manifest/part-0123456789abcdef-00000.parquet"


def _interrupted(num_units: int) -> Iterator[WorkUnit]:
    for unit_id in range(num_units):
        yield unit(unit_id)
    raise KeyboardInterrupt


def test_a_created_run_opens_with_its_units_and_totals(anywhere):
    created = RunDirectory.create(anywhere, RUN, (unit(i) for i in range(25_000)))
    opened = RunDirectory.open(anywhere)
    assert opened.run == created.run == {**RUN, "manifest": asdict(opened.manifest)}
    assert opened.manifest == ManifestSummary(1, 25_000, 75_000, 50_000, opened.manifest.token, opened.manifest.digests)
    assert list(opened.units()) == [unit(i) for i in range(25_000)]


def test_a_large_manifest_has_parts_and_is_read_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.run.manifest._UNITS_PER_ROW_GROUP", 3)
    run_directory = RunDirectory.create(str(tmp_path / "run"), RUN, [unit(i) for i in range(62)])
    assert run_directory.manifest.num_parts == 3
    assert [u.unit_id for u in run_directory.units()] == list(range(62))


def test_an_interrupted_creation_is_no_run_and_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.run.manifest._UNITS_PER_ROW_GROUP", 3)
    path = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(path, RUN, _interrupted(95))
    assert not RunDirectory.exists(path)
    with pytest.raises(ValueError, match="no run here"):
        RunDirectory.open(path)
    run_directory = RunDirectory.create(path, RUN, [unit(0), unit(1)])
    assert [u.unit_id for u in run_directory.units()] == [0, 1]
    assert sorted(file.name for file in (tmp_path / "run" / "manifest").iterdir()) == [
        f"part-{run_directory.manifest.token}-00000.parquet"
    ]
    assert sorted(file.name for file in (tmp_path / "run").iterdir() if file.is_file()) == ["run.json"]


def test_a_creation_that_dies_before_run_json_is_overwritten(tmp_path, monkeypatch):
    def die(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.run.directory.create_file", die)
        with pytest.raises(OSError, match="disk full"):
            RunDirectory.create(str(tmp_path), RUN, [unit(0), unit(1), unit(2)])
    assert RunDirectory.create(str(tmp_path), RUN, [unit(0)]).manifest.num_units == 1


@pytest.mark.parametrize("name", ["notes.txt", _PART, "manifest/part-00000.parquet", "data/part-000000000.parquet"])
def test_a_folder_with_foreign_files_is_refused_and_not_touched(anywhere, name):
    put(anywhere.child(name), b"mine")
    before = sorted(info.path for info in anywhere.list(recursive=True))
    with pytest.raises(ValueError, match=f"is not empty and is not a run: it has \\['{name}'\\]"):
        RunDirectory.create(anywhere, RUN, [unit(0)])
    assert sorted(info.path for info in anywhere.list(recursive=True)) == before
    with pytest.raises(ValueError, match="no run here"):
        RunDirectory.open(anywhere)


def test_a_run_is_not_created_twice(anywhere):
    committed_run(anywhere)
    with pytest.raises(ValueError, match="holds a run already"):
        RunDirectory.create(anywhere, RUN, [unit(0)])


def test_an_output_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(ValueError, match=r"is a file; the output directory must be a folder"):
        RunDirectory.create(str(tmp_path / "out"), RUN, [unit(0)])


def test_every_changed_field_of_the_identity_is_named_with_both_values(tmp_path):
    identity = {"target": {"sha": "a", "dtype": "float32"}, "seed": 7, "stop": ("x",), "empty": {}}
    run_directory = RunDirectory.create(str(tmp_path), {"identity": identity, "carried": {}}, [unit(0)])
    run_directory.refuse_if_changed(identity)
    changed = {"target": {"sha": "b", "dtype": "float32"}, "seed": 7, "stop": ("x", "y"), "top_k": None}
    with pytest.raises(ValueError, match="use a new output directory, or restore") as caught:
        run_directory.refuse_if_changed(changed)
    assert str(caught.value).splitlines()[1:-1] == [
        "  empty: was {}, is absent",
        '  stop: was ["x"], is ["x", "y"]',
        '  target.sha: was "a", is "b"',
        "  top_k: was absent, is null",
    ]


def test_the_missing_units_are_those_without_a_part(anywhere):
    run_directory = RunDirectory.create(anywhere, RUN, [unit(i) for i in range(3)])
    assert run_directory.committed_unit_ids() == set()
    with pytest.raises(FileNotFoundError):
        read_receipt(run_directory, 1)
    commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 1, 2]), [])
    put(anywhere.child("data/notes.txt"), b"x")
    assert run_directory.committed_unit_ids() == {1}
    assert [u.unit_id for u in run_directory.missing_units()] == [0, 2]
    assert len(check_run(run_directory).problems) == 3


def test_the_report_and_the_success_mark_are_written_at_the_end(anywhere):
    run_directory = committed_run(anywhere)
    assert not run_directory.is_success()
    run_directory.write_report({"rows": 1})
    run_directory.write_report({"rows": 6})
    run_directory.add_to_report("proof", {"rows": 2})
    run_directory.add_to_report("proof", {"rows": 3})
    run_directory.mark_success()
    assert RunDirectory.open(anywhere).is_success()
    assert json.loads(anywhere.child("report.json").read_bytes()) == {"rows": 6, "proof": {"rows": 3}}
    run_directory.unmark_success()
    run_directory.unmark_success()
    assert not run_directory.is_success()
    files = {info.base_name for info in anywhere.list() if info.is_file}
    assert files == {"run.json", "report.json"}, "a temporary file was left"
    assert {info.base_name for info in run_directory.temporary.list()} <= {"commit.lock"}


def test_a_creation_that_loses_does_not_harm_the_one_that_wins(tmp_path):
    winners: list[RunDirectory] = []

    def units_of_the_loser() -> Iterator[WorkUnit]:
        yield unit(7)
        winners.append(RunDirectory.create(str(tmp_path), RUN, [unit(0), unit(1)]))
        yield unit(8)

    with pytest.raises(ValueError, match="another process created a run here just now"):
        RunDirectory.create(str(tmp_path), RUN, units_of_the_loser())
    opened = RunDirectory.open(str(tmp_path))
    assert opened == winners[0]
    assert list(opened.units()) == [unit(0), unit(1)]
    assert len(list((tmp_path / "manifest").iterdir())) == 1
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["run.json"]


def test_of_two_creations_ending_together_the_later_link_loses(tmp_path, monkeypatch):
    def create_after_another(*arguments: Any) -> bool:
        monkeypatch.setattr("pipeline.run.directory.create_file", create_file)
        RunDirectory.create(str(tmp_path), RUN, [unit(0), unit(1)])
        return create_file(*arguments)

    monkeypatch.setattr("pipeline.run.directory.create_file", create_after_another)
    with pytest.raises(ValueError, match="another process created a run here just now"):
        RunDirectory.create(str(tmp_path), RUN, [unit(7)])
    assert list(RunDirectory.open(str(tmp_path)).units()) == [unit(0), unit(1)]


def test_a_creation_deletes_no_part_of_another_before_it_won(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.run.manifest._UNITS_PER_ROW_GROUP", 3)
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(str(tmp_path), RUN, _interrupted(45))
    (left,) = (tmp_path / "manifest").iterdir()
    with pytest.raises(KeyboardInterrupt):
        RunDirectory.create(str(tmp_path), RUN, _interrupted(0))
    assert left.exists()


@pytest.mark.parametrize("key", ["identity", "manifest", "carried", "digest", "manifest.token"])
def test_a_run_json_without_a_required_key_is_refused_by_name(finished_run, key):
    path = Path(finished_run.location.child("run.json").path)
    run = json.loads(path.read_text())
    parent, _, name = key.rpartition(".")
    del (run[parent] if parent else run)[name]
    path.write_text(json.dumps(run))
    with pytest.raises(ValueError, match=f"not a run of this version, or damaged: run.json has no {re.escape(key)};"):
        RunDirectory.open(finished_run.location)


def test_a_run_json_that_is_no_object_is_refused(finished_run):
    Path(finished_run.location.child("run.json").path).write_text("[]")
    with pytest.raises(ValueError, match="not a run of this version, or damaged"):
        RunDirectory.open(finished_run.location)


def test_a_run_json_that_was_edited_is_refused(finished_run):
    path = Path(finished_run.location.child("run.json").path)
    content = path.read_text()
    path.write_text(content.replace('"seed": 7', '"seed": 8'))
    with pytest.raises(ValueError, match=r"run\.json is damaged, or was edited: its digest"):
        RunDirectory.open(finished_run.location)
    path.write_text(json.dumps(dict(reversed(json.loads(content).items()))))
    assert RunDirectory.open(finished_run.location) == finished_run


def test_a_manifest_part_that_is_gone_or_changed_is_named(finished_run):
    (part,) = (Path(finished_run.location.path) / "manifest").iterdir()
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{part.name}: damaged: \d+ bytes that are not those of the plan"):
        list(finished_run.units())
    part.unlink()
    with pytest.raises(ValueError, match=f"{part.name}: this part of the manifest is gone; restore it from a copy"):
        list(finished_run.missing_units())


def test_parts_too_short_for_parquet_are_found_in_the_listing(finished_run):
    assert finished_run.truncated_parts() == {}
    Path(finished_run.part_path(1).path).write_bytes(b"")
    assert finished_run.truncated_parts() == {
        "data/part-000000001.parquet": "it has 0 bytes, and the shortest Parquet file 12"
    }
