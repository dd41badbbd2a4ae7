"""Where a file or folder is: a filesystem, a path on it, and the name that finds both again."""

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

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Location:
    """A place on a local disk or in an object store; `Location.parse(location.name)` is the same place.

    What its methods do is tried again, as `retries` allow, while it fails by what can pass (a timeout, a 503).
    """

    filesystem: fs.FileSystem
    path: str  # as the filesystem wants it
    name: str  # as a person writes it: an absolute local path or a URI
    retries: RetryPolicy = field(default=RetryPolicy(), compare=False)

    @classmethod
    def parse(cls, name: str) -> Location:
        """The place that a local path (relative ones from the working directory) or a URI names.

        Raises ValueError for a URI that holds a password, or that pyarrow cannot read.
        """
        if "://" not in name:
            path = os.path.abspath(os.path.expanduser(name))
            return cls(fs.LocalFileSystem(), path, path)
        scheme, _, rest = name.partition("://")
        user, _, host = rest.partition("/")[0].rpartition("@")
        if ":" in user:  # abfss://container@account has no secret
            raise ValueError(
                f"{scheme}://...@{host}: a URI with a password would be written into the run directory; "
                "pass credentials in the environment (AWS_ACCESS_KEY_ID, ...) instead"
            )
        try:
            filesystem, path = fs.FileSystem.from_uri(_one_request_a_file(name))
        except (ValueError, OSError, NotImplementedError) as error:
            raise ValueError(f"cannot open {name!r}: {error}") from error
        return cls(filesystem, path, path if isinstance(filesystem, fs.LocalFileSystem) else name)

    @property
    def is_local(self) -> bool:
        """Whether links, renames and fsync work here (a local disk or a network mount)."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def short_name(self) -> str:
        """The last part of the name, without options: what a metric or a log line calls a run."""
        return self.path.rstrip("/").rpartition("/")[2]

    def child(self, relative: str) -> Location:
        """The place `relative` ("data/part-000000001.parquet") under this folder."""
        return self.at(f"{self.path.rstrip('/')}/{relative}")

    def at(self, path: str) -> Location:
        """The place at `path`, which is under this one, as this filesystem writes paths."""
        below = path[len(self.path.rstrip("/")) :]
        if self.is_local:
            return Location(self.filesystem, path, path, self.retries)
        base, query_mark, query = self.name.partition("?")
        return Location(self.filesystem, path, f"{base.rstrip('/')}{quote(below)}{query_mark}{query}", self.retries)

    def retrying(self, doing: str, operation: Callable[[], _Result]) -> _Result:
        """What `operation` on this place returns, tried again if need be; `doing` ("reading") is for the error."""
        return self.retries.call(f"{doing} {self.name}", operation)

    def info(self) -> fs.FileInfo:
        """What the filesystem knows of this place: type (also NotFound), size, time of change."""
        return self.retrying("looking at", lambda: self.filesystem.get_file_info(self.path))

    def exists(self) -> bool:
        """Whether there is a file or a folder here."""
        return bool(self.info().type != fs.FileType.NotFound)

    def list(self, recursive: bool = False) -> list[fs.FileInfo]:
        """What is in this folder, in one listing, in no order; nothing if there is no such folder."""
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        return self.retrying("listing", lambda: list(self.filesystem.get_file_info(selector)))

    def read_bytes(self) -> bytes:
        """The whole content of this file. Raises FileNotFoundError, or another OSError."""

        def read() -> bytes:
            with self.filesystem.open_input_stream(self.path) as stream:
                return bytes(stream.read())

        return self.retrying("reading", read)

    def open_file(self) -> pa.NativeFile:
        """The file, open for reading at any place of it. Only the opening is tried again."""
        return self.retrying("opening", lambda: self.filesystem.open_input_file(self.path))

    def make_folder(self) -> None:
        """Make this folder, and those above it, unless they are there. Raises OSError."""
        try:
            self.retrying("creating", lambda: self.filesystem.create_dir(self.path, recursive=True))
        except pa.ArrowInvalid as error:  # what pyarrow's gs:// says where the bucket is missing
            raise OSError(f"{self.name} cannot be made; is there such a bucket? ({error})") from error

    def remove(self) -> None:
        """Delete this file, unless it is gone already, or never was there."""
        with suppress(FileNotFoundError):
            self.retrying("deleting", lambda: self.filesystem.delete_file(self.path))


def file_version(info: fs.FileInfo) -> str:
    """What changes when the file is written again: its time of change in ns ("" where a store keeps none)."""
    return "" if info.mtime_ns is None else str(info.mtime_ns)


def _one_request_a_file(uri: str) -> str:
    """The URI with which pyarrow writes a small S3 object by one PUT, not by a multipart upload of one part."""
    if not uri.startswith("s3://") or "allow_delayed_open=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true"
