"""Destinations of a published run: a folder on a disk or in a store, or a dataset on the Hugging Face hub."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, RepoFile
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError, RevisionNotFoundError

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

_HUB = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+?)(@(?P<revision>[^/@]+))?/?")
_FILES_A_COMMIT = 32  # what an interrupted command has to upload again at most
_CHUNK = 1 << 20
_FAILURES = (HTTPError, OSError)  # what an HfApi raises: HfHubHTTPError and those of its HTTP client


class Destination(Protocol):
    """A place for files, which are compared with what is there by content, so that only others are uploaded."""

    @property
    def name(self) -> str:
        """The place as a person writes it."""

    def present(self) -> Mapping[str, str]:
        """List the files that are there, each with a text that says what is in it. Raises OSError."""

    def says(self, file: Path) -> Sequence[str]:
        """Return the texts by which `present` would list a file with this content."""

    def read(self, name: str) -> bytes:
        """Read a small file that is there. Raises OSError."""

    def put(self, files: Mapping[str, Path]) -> Iterator[str]:
        """Write files in this order, each whole or not at all; yield each name once it is there. Raises OSError."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove files. Raises OSError."""


def destination(name: str, *, is_private: bool = True) -> Destination:
    """Return the destination of this name. Raises ValueError for a name of the hub that is no dataset."""
    if not name.startswith("hf://"):
        return Folder(Location.parse(name))
    found = _HUB.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no dataset of the hub; write hf://datasets/OWNER/NAME, or .../NAME@REVISION")
    return HubDataset(found["repo"], found["revision"] or "main", is_private)


@dataclass(frozen=True)
class Folder:
    """A folder. What is there is read back and compared by its sha256."""

    location: Location

    @property
    def name(self) -> str:
        """The folder's path or URI."""
        return self.location.name

    def present(self) -> dict[str, str]:
        """List the files with their sha256."""
        return {name: self._sha256(name) for name in sorted(self.location.files())}

    def says(self, file: Path) -> list[str]:
        """Return the sha256 of the file."""
        with file.open("rb") as stream:
            return [hashlib.file_digest(stream, "sha256").hexdigest()]

    def read(self, name: str) -> bytes:
        """Read a file."""
        return self.location.child(name).read_bytes()

    def put(self, files: Mapping[str, Path]) -> Iterator[str]:
        """Write one file after the other."""
        for name, file in files.items():
            with file.open("rb") as source, replacement(self.location.child(name)) as stream:
                while chunk := source.read(_CHUNK):
                    stream.write(chunk)
            yield name

    def remove(self, names: Sequence[str]) -> None:
        """Remove files."""
        for name in names:
            self.location.child(name).remove()

    def _sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with self.location.child(name).open_file() as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, which tells the digests of its files; nothing is downloaded to compare them.

    The token is the one that `hf auth login` keeps, or HF_TOKEN. A dataset that does not exist is created.
    """

    repo: str
    revision: str
    is_private: bool

    @property
    def name(self) -> str:
        """The dataset as an address of the hub."""
        return f"hf://datasets/{self.repo}" + ("" if self.revision == "main" else f"@{self.revision}")

    def present(self) -> dict[str, str]:
        """List the files with their digests: of large files the sha256, of others git's of their content."""
        try:
            tree = self._api.list_repo_tree(self.repo, repo_type="dataset", revision=self.revision, recursive=True)
            files = [each for each in tree if isinstance(each, RepoFile)]
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return {}
        except _FAILURES as error:
            raise self._failed("listing", error) from error
        return {each.path: each.lfs.sha256 if each.lfs else each.blob_id for each in files}

    def says(self, file: Path) -> list[str]:
        """Return the file's sha256, and git's digest of it."""
        sha256, git = hashlib.sha256(), hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                sha256.update(chunk)
                git.update(chunk)
        return [sha256.hexdigest(), git.hexdigest()]

    def read(self, name: str) -> bytes:
        """Download a small file."""
        try:
            path = self._api.hf_hub_download(self.repo, name, repo_type="dataset", revision=self.revision)
        except _FAILURES as error:
            raise self._failed(f"reading {name} of", error) from error
        return Path(path).read_bytes()

    def put(self, files: Mapping[str, Path]) -> Iterator[str]:
        """Upload files, some in each commit."""
        names = list(files)
        try:
            self._api.create_repo(self.repo, repo_type="dataset", private=self.is_private, exist_ok=True)
            for first in range(0, len(names), _FILES_A_COMMIT):
                some = names[first : first + _FILES_A_COMMIT]
                self._commit([CommitOperationAdd(name, files[name]) for name in some], f"Add {len(some)} files")
                yield from some
        except _FAILURES as error:
            raise self._failed("writing to", error) from error

    def remove(self, names: Sequence[str]) -> None:
        """Remove files in one commit."""
        if names:
            try:
                self._commit([CommitOperationDelete(name) for name in names], f"Remove {len(names)} older files")
            except _FAILURES as error:
                raise self._failed("removing files of", error) from error

    @property
    def _api(self) -> HfApi:
        return HfApi()

    def _commit(self, operations: list[CommitOperationAdd] | list[CommitOperationDelete], message: str) -> None:
        self._api.create_commit(
            self.repo, operations, commit_message=message, repo_type="dataset", revision=self.revision
        )

    def _failed(self, doing: str, error: Exception) -> OSError:
        said = " ".join(str(error).split())
        return OSError(
            f"{doing} {self.name} failed ({type(error).__name__}: {said}); check the network and the token "
            "(`hf auth login`, or HF_TOKEN); the same command goes on with what is missing"
        )
