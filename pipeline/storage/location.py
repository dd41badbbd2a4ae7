"""The location of a file or folder: a filesystem, a path on it, and the name that both are found by."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from pipeline.storage.retries import RetryPolicy
from pipeline.storage.small_object import read_small

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Location:
    """A file or folder on a local disk or in an object store; `Location.parse(location.name)` is the same location.

    Its methods try again, as `retries` allow, after a transient error (a timeout, a 503).
    """

    filesystem: fs.FileSystem
    path: str  # as the filesystem wants it
    name: str  # as a person writes it: an absolute local path or a URI
    retries: RetryPolicy = field(default=RetryPolicy(), compare=False)

    @classmethod
    def parse(cls, name: str) -> Location:
        """Return the location that a local path (absolute, or from the working directory) or a URI names.

        Raises ValueError for a URI that holds a password, or that pyarrow cannot read.
        """
        if "://" not in name:
            path = os.path.abspath(os.path.expanduser(name))
            return cls(fs.LocalFileSystem(), path, path)
        scheme, _, rest = name.partition("://")
        user, _, host = rest.partition("/")[0].rpartition("@")
        if ":" in user:  # a user without a password, as in abfss://container@account, is no secret
            raise ValueError(
                f"{scheme}://...@{host}: a URI with a password would be written into the run directory; "
                "pass credentials in the environment (AWS_ACCESS_KEY_ID, ...) instead"
            )
        uri = name
        if scheme == "s3" and "allow_delayed_open=" not in name:
            # So that pyarrow writes a small object by one PUT, not by a multipart upload of one part.
            uri += f"{'&' if '?' in name else '?'}allow_delayed_open=true"
        try:
            filesystem, path = fs.FileSystem.from_uri(uri)
        except (ValueError, OSError, NotImplementedError) as error:
            raise ValueError(f"cannot open {name!r}: {error}") from error
        return cls(filesystem, path, path if isinstance(filesystem, fs.LocalFileSystem) else name)

    @property
    def is_local(self) -> bool:
        """Whether links, renames and fsync work here (a local disk or a network mount)."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def short_name(self) -> str:
        """The last part of the path, which names a run in metrics and log lines."""
        return self.path.rstrip("/").rpartition("/")[2]

    def child(self, relative: str) -> Location:
        """Return the location `relative` ("data/part-000000001.parquet") under this folder."""
        return self.at(f"{self.path.rstrip('/')}/{relative}")

    def at(self, path: str) -> Location:
        """Return the location at `path`, a path of this filesystem that is under this one."""
        below = path[len(self.path.rstrip("/")) :]
        if self.is_local:
            return Location(self.filesystem, path, path, self.retries)
        base, query_mark, query = self.name.partition("?")
        return Location(self.filesystem, path, f"{base.rstrip('/')}{quote(below)}{query_mark}{query}", self.retries)

    def retrying(self, doing: str, operation: Callable[[], _Result]) -> _Result:
        """Return what `operation` returns, tried again if need be; an error says what it was `doing` ("reading")."""
        try:
            return self.retries.call(f"{doing} {self.name}", operation)
        except Exception as error:
            # A filesystem in Python (hf://) raises what its HTTP client raises.
            package = type(error).__module__.partition(".")[0]
            if not isinstance(self.filesystem, fs.PyFileSystem) or package in ("builtins", "pyarrow"):
                raise
            said = " ".join(str(error).split())
            text = f"{doing} {self.name} failed ({type(error).__name__}: {said}); check the network and the credentials"
            raise OSError(text) from error

    def info(self) -> fs.FileInfo:
        """Return what the filesystem knows of this location: type (also NotFound), size, time of change."""
        return self.retrying("looking at", lambda: self.filesystem.get_file_info(self.path))

    def exists(self) -> bool:
        """Tell whether there is a file or a folder here."""
        return bool(self.info().type != fs.FileType.NotFound)

    def list(self, recursive: bool = False) -> list[fs.FileInfo]:
        """List the content of this folder, in no order; nothing if there is no such folder."""
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        return self.retrying("listing", lambda: list(self.filesystem.get_file_info(selector)))

    def files(self) -> dict[str, fs.FileInfo]:
        """List the files below this folder to its depth, by their paths from here, in no order."""
        root = self.path.rstrip("/") + "/"
        return {info.path.removeprefix(root): info for info in self.list(recursive=True) if info.is_file}

    def read_bytes(self) -> bytes:
        """Read the whole content of this file. Raises FileNotFoundError, or another OSError."""

        def read() -> bytes:
            if (content := read_small(self.name, self.path, self.filesystem)) is not None:
                return content
            # Of a stream pyarrow asks a store for 256 KiB at a time, of a file for all of it at once.
            with self.filesystem.open_input_file(self.path) as file:
                return bytes(file.read())

        return self.retrying("reading", read)

    def read_if_there(self) -> bytes | None:
        """Read the whole content of this file; return None if there is no such file. Raises OSError."""
        with suppress(FileNotFoundError):
            return self.read_bytes()
        return None

    def open_file(self) -> pa.NativeFile:
        """Open the file for reading at any position. Only the opening is tried again."""
        return self.retrying("opening", lambda: self.filesystem.open_input_file(self.path))

    def make_folder(self) -> None:
        """Make this folder and those above it, unless they exist. Raises OSError."""
        try:
            self.retrying("creating", lambda: self.filesystem.create_dir(self.path, recursive=True))
        except pa.ArrowInvalid as error:  # pyarrow's error for gs:// if the bucket is missing
            raise OSError(f"{self.name} cannot be made; is there such a bucket? ({error})") from error

    def remove(self) -> None:
        """Delete this file, if it exists."""
        with suppress(FileNotFoundError):
            self.retrying("deleting", lambda: self.filesystem.delete_file(self.path))


def file_version(info: fs.FileInfo) -> str:
    """Return a text that changes when the file is written again: its time of change in ns, or "" if unknown."""
    return "" if info.mtime_ns is None else str(info.mtime_ns)
