"""A run survives passing failures of a store or a disk, and loses no unit by lasting ones."""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from pipeline.run.check import check_run
from pipeline.run.commit import read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.retries import RetryPolicy
from pipeline.storage.small_object import MOST_IN_VAIN, SMALL, read_small
from pipeline.storage.whole_file import create_file, replace_file
from tests.pipeline.flaky_proxy import Failure, FlakyProxy
from tests.pipeline.made_up import RUN, commit_rows, error, exit_code_of, sound_rows, unit
from tests.pipeline.stores import s3_uri

ONCE_MORE = RetryPolicy(max_tries=2, first_wait_s=0.01, max_wait_s=0.01)
ONE_CLIENT_GIVES_UP = 31  # requests that pyarrow's own client makes of one operation before it reports a failure
ONE_READ_GIVES_UP = 1 + ONE_CLIENT_GIVES_UP  # the first by obstore


def _behind(proxy: FlakyProxy, s3_folder: str) -> Location:
    """Return the same folder, through the proxy, whose operations are tried twice."""
    return replace(Location.parse(s3_uri(proxy.address, Location.parse(s3_folder).path)), retries=ONCE_MORE)


@pytest.fixture
def run_directory(proxy: FlakyProxy, s3_folder: str) -> RunDirectory:
    """Make a run with one unit behind the proxy, whose operations are tried twice."""
    return replace(RunDirectory.create(s3_folder, RUN, [unit()]), location=_behind(proxy, s3_folder))


def _commit(run_directory: RunDirectory) -> None:
    commit_rows(run_directory, unit(), sound_rows(unit(), [0, 2]), [error(unit(), 1)])


def _requests_to_read(file: Location, proxy: FlakyProxy) -> str:
    proxy.requests.clear()
    file.read_bytes()
    return " ".join(request.split()[0] for request in proxy.requests)


def test_a_small_file_is_read_by_one_request_and_no_more_are_tried_where_files_are_large(run_directory, proxy):
    small, large = map(run_directory.location.child, ("small", "large"))
    replace_file(small, bytes(SMALL), small)
    replace_file(large, bytes(SMALL + 1), large)
    assert len(large.read_bytes()) == SMALL + 1
    for _ in range(MOST_IN_VAIN - 1):
        assert _requests_to_read(small, proxy) == "GET"
        assert _requests_to_read(large, proxy) == "GET HEAD GET"
    assert {_requests_to_read(small, proxy), _requests_to_read(large, proxy)} == {"HEAD GET"}


def test_obstore_reads_nothing_where_it_may_not_find_the_credentials(run_directory, monkeypatch):
    file = run_directory.location.child("run.json")
    assert read_small(file.name, file.path, file.filesystem) == file.read_bytes()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert read_small(file.name, file.path, file.filesystem) is None


@pytest.mark.parametrize(
    "failure",
    [
        Failure("PUT .*/data/", 503, ONE_CLIENT_GIVES_UP),
        pytest.param(Failure("PUT .*/data/", 500, ONE_CLIENT_GIVES_UP), marks=pytest.mark.slow),
        Failure("PUT .*/data/", "reset"),
        Failure("PUT .*/(data|errors)/", "reset", 2, after_forwarding=True),  # a lost response
        Failure("HEAD .*/data/", 429),  # pyarrow's client gives up on most of these at once
        Failure("GET .*list-type=2", 429),
        Failure("PUT .*/errors/", 429),
        Failure("PUT .*/data/", 429),
        Failure("GET .*/data/part", 429),
    ],
    ids=str,
)
def test_a_commit_and_a_check_survive_a_store_that_fails_for_a_while(run_directory, proxy, failure):
    proxy.failures.append(replace(failure))
    _commit(run_directory)
    assert check_run(run_directory).is_complete
    assert proxy.failures[0].times == 0


def test_the_error_of_a_store_staying_down_says_what_was_tried(run_directory, proxy):
    proxy.failures.append(Failure("PUT .*/data/", 503, 1000))
    with pytest.raises(OSError, match=r"writing s3://.*/data/part-000000000.parquet\?.* failed 2 times in .*SlowDown"):
        _commit(run_directory)
    proxy.failures.clear()
    assert run_directory.committed_unit_ids() == set()
    _commit(run_directory)
    assert check_run(run_directory).is_complete


def test_a_refused_request_is_not_tried_again(run_directory, proxy):
    proxy.failures.append(Failure("PUT", 403, 1000))
    proxy.requests.clear()
    with pytest.raises(OSError, match="ACCESS_DENIED") as caught:
        _commit(run_directory)
    assert "times" not in str(caught.value)
    assert len([request for request in proxy.requests if request.startswith("PUT")]) == 1
    proxy.requests.clear()
    with pytest.raises(FileNotFoundError):
        read_receipt(run_directory, 0)
    assert len(proxy.requests) <= 3


def test_a_large_part_whose_upload_breaks_midway_does_not_exist(s3_folder, proxy):
    place = _behind(proxy, s3_folder)
    place.make_folder()
    proxy.failures.append(Failure("PUT .*partNumber=2", 403, 1000))
    content = bytes(25_000_000)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        replace_file(place.child("part"), content, place)
    assert not place.child("part").exists()
    proxy.failures.clear()
    replace_file(place.child("part"), content, place)
    assert place.child("part").info().size == len(content)


def _commit_with_little_space(path: str, num_bytes: int) -> None:
    """Exit with code 0 if the commit fails for lack of space, with the error that a full disk gives."""
    run_directory = RunDirectory.open(path)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))
    try:
        _commit(run_directory)
    except OSError as failure:
        raise SystemExit(0 if failure.errno == errno.EFBIG else 2) from None
    raise SystemExit(1)


@pytest.mark.parametrize("num_bytes", [0, 100, 3500])
def test_a_disk_that_runs_full_keeps_no_partial_file_and_loses_no_unit(tmp_path, num_bytes):
    run_directory = RunDirectory.create(str(tmp_path), RUN, [unit()])
    assert exit_code_of(_commit_with_little_space, str(tmp_path), num_bytes) == 0
    assert run_directory.committed_unit_ids() == set()
    assert [info.base_name for info in run_directory.temporary.list()] == ["commit.lock"]
    _commit(run_directory)
    assert check_run(run_directory).is_complete
    assert check_run(run_directory).notes == []


def test_a_write_to_a_full_device_fails_at_once_and_leaves_the_older_file(full_disk):
    place = Location.parse(str(full_disk))
    replace_file(place.child("small"), b"old", place)
    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(place.child("small"), bytes(1 << 20), place)
    assert caught.value.errno == errno.ENOSPC
    assert "times" not in str(caught.value)
    assert place.child("small").read_bytes() == b"old"
    assert [path.name for path in full_disk.iterdir()] == ["small"]


def test_a_run_on_a_full_disk_goes_on_when_space_is_made(full_disk):
    ballast = full_disk / "ballast"
    run_directory = RunDirectory.create(str(full_disk / "run"), RUN, [unit(i) for i in range(3)])
    commit_rows(run_directory, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="No space left"):
        commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 2]), [error(unit(1), 1)])
    assert run_directory.committed_unit_ids() == {0}
    ballast.unlink()
    commit_rows(run_directory, unit(1), sound_rows(unit(1), [0, 2]), [error(unit(1), 1)])
    commit_rows(run_directory, unit(2), sound_rows(unit(2), [0, 1, 2]), [])
    assert check_run(run_directory).is_complete
    assert check_run(run_directory).notes == []


@pytest.mark.parametrize("folder", ["data", "errors"])
@pytest.mark.parametrize(("how", "text"), [(403, "ACCESS_DENIED"), (429, "failed 2 times")])
def test_a_part_that_the_store_does_not_return_is_not_called_damaged(run_directory, proxy, how, text, folder):
    _commit(run_directory)
    proxy.failures.append(Failure(f"GET .*/{folder}/part", how, 1000 if how == 403 else 2 * ONE_READ_GIVES_UP))
    with pytest.raises(OSError, match=text):
        check_run(run_directory)
    proxy.failures.clear()
    assert check_run(run_directory).is_complete


def test_a_link_whose_response_was_lost_is_recognized_as_ours(tmp_path, monkeypatch):
    link = os.link

    def link_and_lose_the_answer(*paths: str) -> None:
        monkeypatch.setattr("pipeline.storage.whole_file.os.link", link)
        link(*paths)
        raise OSError(errno.ESTALE, "Stale file handle")  # as NFS does when the server is back

    monkeypatch.setattr("pipeline.storage.whole_file.os.link", link_and_lose_the_answer)
    place = replace(Location.parse(str(tmp_path)), retries=ONCE_MORE)
    assert create_file(place.child("part"), b"ours", place)
    assert not create_file(place.child("part"), b"theirs", place)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


class _Store:
    """A folder in the role of an object store; after put number k, another writer may replace the file."""

    def __init__(self, folder: Path, becomes: dict[int, bytes]) -> None:
        self._folder, self._becomes = folder, becomes
        self._files = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self.num_puts = self.num_deleted = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[BytesIO]:
        stream = BytesIO()
        yield stream
        self.num_puts += 1
        (self._folder / path).write_bytes(self._becomes.get(self.num_puts, stream.getvalue()))

    def delete_file(self, path: str) -> None:
        self.num_deleted += 1
        self._files.delete_file(path)


@pytest.mark.parametrize(
    ("becomes", "num_deleted"),
    [({1: b"the other attempt's part, of another size"}, 0), ({1: b"a pa", 2: b""}, 2)],
    ids=["the file of another attempt is never deleted", "a truncated upload is removed and sent again"],
)
def test_of_two_attempts_that_put_a_file_at_once_one_is_there_whole(tmp_path, becomes, num_deleted):
    store: Any = _Store(tmp_path, becomes)
    place = Location(store, "part", "store://part", RetryPolicy(max_tries=4, first_wait_s=0.001, max_wait_s=0.002))
    assert create_file(place, b"a part", place)
    assert (tmp_path / "part").read_bytes() == b"a part"
    assert store.num_deleted == num_deleted
