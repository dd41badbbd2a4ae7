"""A run in an object store (servers of the S3 and gs:// protocols) is the same run as on a local disk."""

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError

from pipeline.counts import COUNTED_COLUMNS, count_generations
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions
from pipeline.run.check import check_run
from pipeline.run.commit import read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from pipeline.run.unit_rows import tally
from pipeline.storage.conditional import create_object
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file, replacement
from tests.pipeline.made_up import RUN, commit_rows, committed_run, error, put, read_all, sound_rows, unit, write_errors
from tests.pipeline.stores import gcs_uri, s3_uri


def test_a_run_in_a_store_has_the_content_of_the_local_one(store_folder, tmp_path):
    local, remote = committed_run(tmp_path / "run"), committed_run(Location.parse(store_folder))
    assert list(remote.units()) == list(local.units()) == [unit(0), unit(1)]
    assert remote.committed_unit_ids() == {0, 1}
    assert remote.failed_unit_ids() == {1}
    assert list(remote.missing_units()) == []
    assert check_run(remote) == check_run(local)
    assert check_run(remote).is_complete
    assert content_hash(remote) == content_hash(local)
    assert read_receipt(remote, 1) == read_receipt(local, 1)
    by_sample = [tally(run, ["sample"], COUNTED_COLUMNS, count_generations) for run in (remote, local)]
    assert by_sample[0] == by_sample[1]
    own_files = {info.base_name for info in remote.location.list() if info.is_file}
    assert own_files == {"run.json"}, "a temporary file was left"


@pytest.mark.slow
def test_more_parts_than_one_listing_returns_are_all_found(s3_folder):
    run_directory = RunDirectory.create(s3_folder, RUN, [unit(i) for i in range(1003)])
    with ThreadPoolExecutor(8) as threads:
        parts = [run_directory.part_path(unit_id) for unit_id in range(1001)]
        list(threads.map(lambda part: replace_file(part, b"x", part), parts))
    assert run_directory.committed_unit_ids() == set(range(1001))
    assert [u.unit_id for u in run_directory.missing_units()] == [1001, 1002]


def test_errors_of_an_attempt_that_died_in_s3_before_its_part_do_not_count(s3_folder):
    """These errors stay: without a lock they could be those of an attempt that commits at this moment."""
    run_directory = RunDirectory.create(s3_folder, RUN, [unit()])
    write_errors(run_directory, 0, [1])
    commit_rows(run_directory, unit(), sound_rows(unit(), [0, 1, 2]), [])
    check = check_run(run_directory)
    assert check.is_complete
    assert (check.counts.num_rows, check.counts.num_errors) == (3, 0)
    assert "1 of its rows are in data and count as generated" in check.notes[0]


def test_error_rows_are_written_to_s3_before_their_part(s3_server, s3_folder, proxy):
    run_directory = RunDirectory.create(s3_folder.replace(s3_server, proxy.address), RUN, [unit()])
    proxy.requests.clear()
    commit_rows(run_directory, unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])
    written = [request.split("/")[-2] for request in proxy.requests if request.startswith("PUT")]
    assert written == ["errors", "data"], proxy.requests  # a multipart upload would be three requests each
    assert len(proxy.requests) <= 6


def _commit_all(uri: str, barrier: Any) -> None:
    run_directory = RunDirectory.open(uri)
    for unit_id in range(5):
        barrier.wait(30)
        rows, errors = sound_rows(unit(unit_id), [0, 2]), [error(unit(unit_id), 1)]
        commit_rows(run_directory, unit(unit_id), rows, errors)


def test_two_processes_that_commit_the_same_units_to_s3_leave_whole_units(s3_folder):
    run_directory = RunDirectory.create(s3_folder, RUN, [unit(i) for i in range(5)])
    context = multiprocessing.get_context("spawn")  # pyarrow's S3 client does not survive a fork
    barrier = context.Barrier(2)
    processes = [context.Process(target=_commit_all, args=(s3_folder, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    report = check_run(run_directory)
    assert report.problems == []
    assert (report.counts.num_rows, report.counts.num_errors) == (15, 5)


def test_a_part_that_is_in_s3_is_not_replaced_by_a_writer_who_looked_before_it_was_there(s3_folder, monkeypatch):
    run_directory = RunDirectory.create(s3_folder, RUN, [unit()])
    first = commit_rows(run_directory, unit(), sound_rows(unit(), [0, 1, 2]), [])
    before = run_directory.part_path(0).read_bytes()
    monkeypatch.setattr(Location, "exists", lambda self: False)  # what the late writer saw
    late = commit_rows(run_directory, unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])
    assert late == replace(first, already_committed=True)
    assert run_directory.part_path(0).read_bytes() == before
    assert create_file(run_directory.part_path(0), before, run_directory.temporary), (
        "the answer to our own PUT was lost"
    )


_NO_ROLE = "Error performing PUT http://169.254.169.254/latest/api/token in 6.5ms - HTTP error: error sending request"
_OF_PART = "Error performing PUT http://store/bucket/part-000501 in 6.5ms, after 15 retries"


@pytest.mark.parametrize(
    "error",
    [
        NotSupportedError("A header you provided implies functionality that is not implemented"),
        GenericError(f"{_OF_PART} - Server returned non-2xx status code: 501 Not Implemented: "),
        GenericError(f"{_OF_PART} - Server returned non-2xx status code: 400 Bad Request: InvalidArgument"),
        GenericError(_NO_ROLE),
        ValueError('Could not parse path: Path "a//b" contained empty path segment'),
    ],
    ids=["header", "501", "400", "no credentials", "key"],
)
def test_a_store_without_conditional_writes_gets_plain_ones_and_is_asked_once(s3_folder, monkeypatch, caplog, error):
    folder = Location.parse(s3_folder)
    folder.make_folder()
    asked = []
    monkeypatch.setattr("obstore.put", lambda *_, **__: refuse(asked, error))
    for number in (501, 502):
        part = folder.child(f"part-{number:06}")
        assert create_file(part, b"first", folder)
        assert part.read_bytes() == b"first"
    assert len(asked) == caplog.text.count("no conditional writes") == 1


def refuse(asked: list[Exception], error: Exception) -> None:
    asked.append(error)
    raise error


@pytest.mark.parametrize(
    "error",
    [
        GenericError(f"{_OF_PART} - Server returned non-2xx status code: 503 Service Unavailable: "),
        GenericError(f"{_OF_PART} - HTTP error: error sending request"),
        AlreadyExistsError(f"{_OF_PART} - Server returned non-2xx status code: 409 Conflict: "),
    ],
    ids=["503", "connection", "409 without an object"],
)
def test_a_store_that_fails_over_a_part_whose_number_reads_like_a_refusal_is_asked_again(s3_folder, monkeypatch, error):
    folder = Location.parse(s3_folder)
    folder.make_folder()
    part = folder.child("part-000501")
    monkeypatch.setattr("obstore.put", lambda *_, **__: refuse([], error))
    with pytest.raises(OSError, match="HTTP status 503 or no answer"):
        create_object(part, b"first")


def test_an_endpoint_of_the_environment_may_be_one_of_plain_http(s3_folder, s3_server, monkeypatch):
    folder = Location.parse(s3_folder)
    folder.make_folder()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3_server}")
    part = replace(folder.child("part"), name=f"s3://{folder.path}/part")
    assert [create_object(part, content) for content in (b"first", b"second")] == [True, False]


@pytest.mark.parametrize("name", ["a b", "run~1", "50%", "ü[1]", "a+b", "x%20y"])
def test_a_part_in_a_folder_with_a_special_name_is_where_pyarrow_looks(s3_folder, name):
    folder = Location.parse(s3_folder).child(name)
    folder.make_folder()
    assert [create_object(folder.child("part"), b"first"), create_object(folder.child("part"), b"x")] == [True, False]
    with folder.child("part").open_file() as file:
        assert file.read() == folder.child("part").read_bytes() == b"first"


def test_the_error_of_a_missing_bucket_names_it(s3_server, gcs_server):
    uri = s3_uri(s3_server, "no-such-bucket/run").replace("&allow_bucket_creation=true", "")
    with pytest.raises(OSError, match="no-such-bucket"):
        RunDirectory.create(uri, RUN, [unit(0)])
    with pytest.raises(OSError, match=r"no-such-bucket/run.* cannot be made; is there such a bucket"):
        RunDirectory.create(gcs_uri(gcs_server, "run").replace("@bucket/", "@no-such-bucket/"), RUN, [unit(0)])


def test_prompts_are_read_from_s3_as_from_a_disk(s3_folder, tmp_path):
    lines = "".join(json.dumps({"prompt": f"number {i}", "id": str(i)}) + "\n" for i in range(50)).encode()
    table = pa.table({"prompt": [f"number {i}" for i in range(50)], "id": [str(i) for i in range(50)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7)
    for folder, name, content in [("jsonl", "a.jsonl", lines), ("parquet", "b.parquet", sink.getvalue().to_pybytes())]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content)
        put(Location.parse(s3_folder).child(f"{folder}/{name}"), content)
        options = InputOptions(id_column="id")
        uri = s3_folder.replace("/folder", f"/folder/{folder}")
        remote, local = list_files([uri]), list_files([str(tmp_path / folder)])
        assert [file.size for file in remote] == [file.size for file in local]
        assert list_files([uri.replace(folder + "?", folder + "/*?")]) == remote
        assert read_all(remote, options, 8) == read_all(local, options, 8) != []


def test_a_file_larger_than_one_request_is_whole_or_the_older_file_stays(store_folder):
    place = Location.parse(store_folder).child("out.jsonl")
    put(place, b"old")
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
