"""A run in Google's object store (gs://, an emulator of it) is the same run as on a local disk."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import Compaction
from pipeline.run.check import check_run, content_hash
from pipeline.run.commit import read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.lease import LeaseHeld, hold_lease
from pipeline.run.quarantine import quarantine
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, replacement
from tests.pipeline.gcs_server import gcs_uri, running_gcs_server
from tests.pipeline.made_up import RUN, commit_rows, committed_run, error, sound_rows, unit


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_gcs_server() as address:
        yield address


@pytest.fixture
def folder(server: str) -> str:
    """The URI of a folder of the test's own."""
    return gcs_uri(server, f"{uuid.uuid4().hex}/run")


def test_a_run_in_gs_holds_what_the_local_one_holds(folder: str, tmp_path: Path) -> None:
    local, remote = committed_run(tmp_path / "run"), committed_run(Location.parse(folder))
    again = RunDirectory.open(folder)
    assert list(again.units()) == list(local.units()) == [unit(0), unit(1)]
    assert again.committed_unit_ids() == {0, 1}
    assert again.failed_unit_ids() == {1}
    assert list(again.missing_units()) == []
    assert check_run(again) == check_run(local)
    assert check_run(again).is_complete
    assert content_hash(again) == content_hash(local)
    assert read_receipt(again, 1) == read_receipt(local, 1)
    remote.write_report({"rows": 6})
    remote.mark_success()
    assert again.is_success()
    again.unmark_success()
    again.unmark_success()
    assert not remote.is_success()
    assert json.loads(again.location.child("report.json").read_bytes()) == {"rows": 6}


def test_what_is_missing_in_gs_is_what_has_no_part_and_a_second_attempt_leaves_a_part_alone(folder: str) -> None:
    run_directory = RunDirectory.create(folder, RUN, [unit(i) for i in range(3)])
    assert run_directory.committed_unit_ids() == set()
    with pytest.raises(FileNotFoundError):
        read_receipt(run_directory, 1)
    commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 1, 2]), [])
    content = run_directory.part_path(1).read_bytes()
    second = commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 1]), [error(unit(1), 2)])
    assert second.already_committed
    assert run_directory.part_path(1).read_bytes() == content
    assert [u.unit_id for u in run_directory.missing_units()] == [0, 2]
    assert len(check_run(run_directory).problems) == 2


def test_a_run_is_not_created_twice_in_gs_nor_over_somebody_elses_files(folder: str) -> None:
    committed_run(Location.parse(folder))
    with pytest.raises(ValueError, match="holds a run already"):
        RunDirectory.create(folder, RUN, [unit(0)])
    other = folder.replace("/run", "/other")
    place = Location.parse(other).child("notes.txt")
    replace_file(place, b"mine", place)
    with pytest.raises(ValueError, match=r"is not empty and is not a run: it has \['notes.txt'\]"):
        RunDirectory.create(other, RUN, [unit(0)])


def test_a_bucket_that_does_not_exist_is_an_error_that_names_it(server: str) -> None:
    uri = gcs_uri(server, "run").replace("@bucket/", "@no-such-bucket/")
    with pytest.raises(OSError, match=r"no-such-bucket/run.* cannot be made; is there such a bucket"):
        RunDirectory.create(uri, RUN, [unit(0)])


def test_one_driver_holds_a_run_in_gs(folder: str) -> None:
    run_directory = committed_run(Location.parse(folder))
    with hold_lease(run_directory, 8.0, renew_every_s=0.02), pytest.raises(LeaseHeld), hold_lease(run_directory, 8.0):
        raise AssertionError("two drivers at once")
    with hold_lease(run_directory, 8.0):
        pass


def test_a_damaged_part_in_gs_is_moved_away_and_its_unit_is_missing(folder: str) -> None:
    run_directory = committed_run(Location.parse(folder))
    part = run_directory.part_path(0)
    replace_file(part, part.read_bytes()[:-9], part)
    assert quarantine(run_directory, check_run(run_directory).damaged) == ["quarantine/data/part-000000000.parquet"]
    assert [u.unit_id for u in run_directory.missing_units()] == [0]


def test_a_run_in_gs_is_compacted_to_gs(folder: str) -> None:
    run_directory = committed_run(Location.parse(folder))
    destination = Location.parse(folder.replace("/run", "/compact"))
    compaction = Compaction.begin(run_directory, destination, Cut(max_rows=4), include_errors=True)
    files = list(compaction.files())
    assert [file.num_rows for file in files] == [4, 4, 2, 1]
    assert compaction.finish(files).content_hash == content_hash(run_directory)
    assert all(file.was_there for file in Compaction.files(compaction))


def test_a_file_larger_than_one_request_arrives_whole_or_what_was_there_stays(folder: str) -> None:
    place = Location.parse(folder).child("out.jsonl")
    replace_file(place, b"old", place)
    with pytest.raises(KeyError, match="mine"):
        _fail_while_writing(place)
    assert place.read_bytes() == b"old"
    with replacement(place) as stream:
        stream.write(bytes(12_000_000))
    assert place.read_bytes() == bytes(12_000_000)


def _fail_while_writing(place: Location) -> None:
    with replacement(place) as stream:
        stream.write(bytes(12_000_000))
        raise KeyError("mine")
