"""Destinations of a published run: a folder on a disk or in a store, or a dataset on the Hugging Face hub."""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, RepoFile
from huggingface_hub.errors import HTTPError, RepositoryNotFoundError, RevisionNotFoundError

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

_HUB = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+?)(@(?P<revision>[^/@]+))?/?")
_COMMIT = re.compile("[0-9a-fA-F]{7,40}")  # whole or short
_FILES_AT_ONCE = 32  # that are uploaded side by side
_CHUNK = 1 << 20
_FAILURES = (HTTPError, OSError)  # what an HfApi raises: HfHubHTTPError and those of its HTTP client


@dataclass(frozen=True)
class Folder:
    """A folder. What is there is read back and compared by its sha256, so that only other files are written."""

    location: Location
    has_commits = False  # so that not all files change at once, and only the card says which data are whole

    @property
    def name(self) -> str:
        """The folder's path or URI."""
        return self.location.name

    def present(self) -> dict[str, str]:
        """List the files that are there, each with its sha256. Raises OSError."""
        found = {}
        for name in sorted(self.location.files()):
            with self.location.child(name).open_file() as stream:
                found[name] = hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
        return found

    def says(self, file: Path) -> list[str]:
        """Return the texts by which `present` would list a file with this content: its sha256."""
        with file.open("rb") as stream:
            return [hashlib.file_digest(stream, "sha256").hexdigest()]

    def read(self, name: str) -> bytes:
        """Read a small file that is there. Raises OSError."""
        return self.location.child(name).read_bytes()

    def replace(self, files: Mapping[str, Path], older: Sequence[str]) -> Iterator[str]:
        """Write one file after the other, each whole or not at all, the card last, and then remove the older ones.

        Yield each name when readers can see its content. A reader of the data that the card names sees all of the older
        or all of the newer ones. Raises OSError.
        """
        for name, file in files.items():
            with file.open("rb") as source, replacement(self.location.child(name)) as stream:
                shutil.copyfileobj(source, stream, _CHUNK)
            yield name
        for name in older:
            self.location.child(name).remove()


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub, which tells the digests of its files; nothing is downloaded to compare them.

    The token is the one that `hf auth login` keeps, or HF_TOKEN. A dataset that does not exist is created.
    """

    repo: str
    revision: str
    is_private: bool
    has_commits = True  # one commit brings and removes all files

    @property
    def name(self) -> str:
        """The dataset as an address of the hub."""
        return f"hf://datasets/{self.repo}" + ("" if self.revision == "main" else f"@{self.revision}")

    def present(self) -> dict[str, str]:
        """List the files with their digests: of large files the sha256, of others git's of their content."""
        try:
            tree = HfApi().list_repo_tree(self.repo, repo_type="dataset", revision=self.revision, recursive=True)
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
            path = HfApi().hf_hub_download(self.repo, name, repo_type="dataset", revision=self.revision)
        except _FAILURES as error:
            raise self._failed(f"reading {name} of", error) from error
        return Path(path).read_bytes()

    def replace(self, files: Mapping[str, Path], older: Sequence[str]) -> Iterator[str]:
        """Upload large files, which no reader sees yet, and then add, replace and remove all in one commit.

        Yields as `Folder.replace` does, and raises OSError.
        """
        if not files and not older:
            return
        additions = [CommitOperationAdd(name, file) for name, file in files.items()]
        where: dict[str, Any] = {"repo_type": "dataset", "revision": self.revision}
        try:
            self._make_branch()
            for first in range(0, len(additions), _FILES_AT_ONCE):
                HfApi().preupload_lfs_files(self.repo, additions[first : first + _FILES_AT_ONCE], **where)
            message = f"Publish {len(files)} files" + (f", remove {len(older)} older ones" if older else "")
            operations = [*additions, *(CommitOperationDelete(name) for name in older)]
            HfApi().create_commit(self.repo, operations, commit_message=message, **where)
        except _FAILURES as error:
            raise self._failed("writing to", error) from error
        yield from files

    def _make_branch(self) -> None:
        """Make the dataset and the branch unless they are there. A new branch begins without the files of others."""
        HfApi().create_repo(self.repo, repo_type="dataset", private=self.is_private, exist_ok=True)
        refs = HfApi().list_repo_refs(self.repo, repo_type="dataset")
        if self.revision in (tag.name for tag in refs.tags):
            raise OSError(f"{self.name}: {self.revision} is a tag, which never changes; name a branch, new or old")
        if self.revision not in ("main", *(branch.name for branch in refs.branches)):
            first = HfApi().list_repo_commits(self.repo, repo_type="dataset")[-1].commit_id
            HfApi().create_branch(self.repo, branch=self.revision, revision=first, repo_type="dataset", exist_ok=True)

    def _failed(self, doing: str, error: Exception) -> OSError:
        said = " ".join(str(error).split())
        return OSError(
            f"{doing} {self.name} failed ({type(error).__name__}: {said}); check the network and the token "
            "(`hf auth login`, or HF_TOKEN); the same command goes on with what is missing"
        )


Destination = Folder | HubDataset


def destination(name: str, *, is_private: bool = True) -> Destination:
    """Return the destination of this name. Raises ValueError for a name of the hub that is no dataset."""
    if not name.startswith("hf://"):
        return Folder(Location.parse(name))
    found = _HUB.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no dataset of the hub; write hf://datasets/OWNER/NAME, or .../NAME@REVISION")
    if _COMMIT.fullmatch(found["revision"] or ""):
        raise ValueError(
            f"{name}: {found['revision']} is a commit by its form, and commits never change; name a branch, new or old"
        )
    return HubDataset(found["repo"], found["revision"] or "main", is_private)
