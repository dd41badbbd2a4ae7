"""When two attempts put the same file into an object store at the same moment, one of the two is there, whole."""

from pathlib import Path
from typing import Any

from pyarrow import fs

from pipeline.storage.location import Location
from pipeline.storage.retries import RetryPolicy
from pipeline.storage.whole_file import create_file

_QUICK = RetryPolicy(max_tries=4, first_wait_s=0.001, max_wait_s=0.002)


def test_an_attempt_never_deletes_the_file_of_another_one(tmp_path: Path) -> None:
    store = _Store(tmp_path, {1: b"the other attempt's part, of another size"})
    assert create_file(_at(store), b"a part", _at(store))
    assert (tmp_path / "part").read_bytes() == b"a part"
    assert store.num_deleted == 0


def test_a_truncated_upload_is_removed_and_sent_again(tmp_path: Path) -> None:
    store = _Store(tmp_path, {1: b"a pa", 2: b""})
    assert create_file(_at(store), b"a part", _at(store))
    assert (tmp_path / "part").read_bytes() == b"a part"
    assert store.num_deleted == 2


def _at(store: Any) -> Location:
    return Location(store, "part", "store://part", _QUICK)


class _Store:
    """A folder in the role of an object store; after put number k, another writer may replace the file."""

    def __init__(self, folder: Path, becomes: dict[int, bytes]) -> None:
        self._folder, self._becomes = folder, becomes
        self._files = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self._num_puts = 0
        self.num_deleted = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_output_stream(self, path: str) -> Any:
        return _Stream(self, path)

    def put(self, path: str, content: bytes) -> None:
        self._num_puts += 1
        (self._folder / path).write_bytes(self._becomes.get(self._num_puts, content))

    def delete_file(self, path: str) -> None:
        self.num_deleted += 1
        self._files.delete_file(path)


class _Stream:
    def __init__(self, store: _Store, path: str) -> None:
        self._store, self._path, self._content = store, path, b""

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._store.put(self._path, self._content)

    def write(self, content: bytes) -> None:
        self._content += content
