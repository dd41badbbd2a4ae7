"""The output folder of a training: the draft and provenance.json, whole or not at all.

On a local disk the folder appears by a rename. In an object store, where there is none, _TRAINING says first whose
files are coming, and _SUCCESS is written last.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyarrow import fs

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file

PROVENANCE = "provenance.json"
_TRAINING, _SUCCESS = "_TRAINING", "_SUCCESS"


def finished_provenance(output: Location, identity: str) -> dict[str, Any] | None:
    """Return the provenance of this very training if its draft is there; None if it can be written.

    `identity` tells trainings apart. Raises ValueError if the folder holds anything else.
    """
    if output.info().type == fs.FileType.File:
        raise ValueError(f"{output.name} is a file; output.path must be a new folder")
    files = output.files()
    if not files:
        return None
    if PROVENANCE in files and (output.is_local or _SUCCESS in files):
        provenance: dict[str, Any] = json.loads(output.child(PROVENANCE).read_bytes())
        if provenance.get("identity") == identity:
            return provenance
    elif output.child(_TRAINING).read_if_there() == identity.encode():
        return None  # an upload that was interrupted
    raise ValueError(
        f"{output.name} is not empty and is not what this training writes: it has {sorted(files)[:5]}; name a new "
        "folder in output.path (nothing here was touched)"
    )


def held_out_when_trained(draft: str) -> float | None:
    """Return the share of the prompts that was held out when the draft in a folder was trained; None if it was not.

    Raises ValueError for a provenance.json that cannot be read.
    """
    file = Path(draft) / PROVENANCE
    if not file.is_file():
        return None
    try:
        return float(json.loads(file.read_text(encoding="utf-8"))["corpus"]["held_out_share"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say on what the draft was trained ({error}); move the file away") from error


def publish(draft: Path, provenance: Mapping[str, Any], output: Location) -> None:
    """Write the files of the folder `draft` and provenance.json as the output. Raises OSError; there is none then."""
    content = (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode()
    if output.is_local:
        _rename(draft, content, Path(output.path))
        return
    output.make_folder()
    unused = output.child("_tmp")  # stores need no temporary files
    replace_file(output.child(_TRAINING), str(provenance["identity"]).encode(), unused)
    for file in sorted(each for each in draft.rglob("*") if each.is_file()):
        _upload(file, output.child(file.relative_to(draft).as_posix()))
    replace_file(output.child(PROVENANCE), content, unused)
    replace_file(output.child(_SUCCESS), b"", unused)
    output.child(_TRAINING).remove()


def _rename(draft: Path, content: bytes, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.parent / f".{output.name}.{uuid4().hex}"
    try:
        shutil.copytree(draft, unfinished)
        (unfinished / PROVENANCE).write_bytes(content)
        for file in unfinished.rglob("*"):
            _sync(file)
        os.replace(unfinished, output)  # an empty folder is replaced, any other one is an error
        _sync(output.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _sync(path: Path) -> None:
    """Make a file or a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _upload(file: Path, location: Location) -> None:
    def copy() -> None:
        with file.open("rb") as source, location.filesystem.open_output_stream(location.path) as stream:
            shutil.copyfileobj(source, stream)
        if location.info().size != file.stat().st_size:
            raise OSError(f"{location.name}: {file.stat().st_size} bytes were sent and {location.info().size} arrived")

    location.retrying("writing", copy)
