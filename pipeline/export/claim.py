"""The claim on a destination folder: `_dray.json` says which run is compacted there, and how."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Set
from typing import Any

from pyarrow import fs

from pipeline.storage.location import Location
from pipeline.storage.whole_file import replacement

_NOTE = "_dray.json"
_FILE_NAME = re.compile(r"(_dray\.json|(data|errors)/part-\d{5,}\.parquet)(\.[0-9a-f]{32})?")  # also on its way
_OPTIONS = ("rows_per_file", "bytes_per_file", "include_errors", "partial")


def claim_digest(claim: Mapping[str, Any]) -> str:
    """What tells the files of this compaction from those of another; where the run lies plays no role."""
    made_of = {key: value for key, value in claim.items() if key != "source"}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def take(destination: Location, claim: Mapping[str, Any]) -> None:
    """Write `_dray.json` into an empty destination, or find that it holds this very compaction.

    `claim` has at least "run", "state", "source" and the options. What a command that died left on its way is deleted.
    Raises ValueError if anything else is there, and OSError.
    """
    if destination.info().type == fs.FileType.File:
        raise ValueError(f"{destination.name} is a file; the destination must be a folder")
    names = _names(destination)
    foreign = sorted(name for name in names if not _FILE_NAME.fullmatch(name))
    on_their_way = {name for name in names - {*foreign} if not name.endswith((".parquet", ".json"))}
    if foreign or (_NOTE not in names and names - on_their_way):
        raise ValueError(
            f"{destination.name} is not empty and is no compaction: it has {(foreign or sorted(names))[:5]}; "
            "use a new destination (nothing here was touched)"
        )
    if _NOTE in names:
        _refuse_another(destination, claim)
    for name in on_their_way:
        destination.child(name).remove()  # of a command that died
    if _NOTE not in names:
        write_note(destination, {**claim, "complete": False})


def refuse_others(destination: Location, names: Set[str]) -> None:
    """Raise ValueError if the destination has other files than these and `_dray.json`: readers would read them, too."""
    others = sorted(_names(destination) - names - {_NOTE})
    if others:
        raise ValueError(
            f"{destination.name} also has {others[:5]}{' and more' if len(others) > 5 else ''}, which are not of this "
            "compaction (of an earlier one, or of another command at work there?); delete them and run the same command"
        )


def _names(destination: Location) -> set[str]:
    """The files below the destination, as paths from there."""
    root = destination.path.rstrip("/") + "/"
    return {info.path.removeprefix(root) for info in destination.list(recursive=True) if info.is_file}


def _refuse_another(destination: Location, claim: Mapping[str, Any]) -> None:
    """Raise ValueError if the destination's `_dray.json` is not of this claim."""
    try:
        there = json.loads(destination.child(_NOTE).read_bytes())
        named = {key: there[key] for key in claim}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{destination.name}: its {_NOTE} is not of this version, or damaged; use a new destination"
        ) from error
    if named["run"] != claim["run"]:
        raise ValueError(f"{destination.name} holds another run, {named['source']}; use a new destination")
    changed = sorted(key for key in _OPTIONS if named[key] != claim[key])
    if changed:
        was = ", ".join(f"{key} {named[key]}" for key in changed)
        now = ", ".join(f"{key} {claim[key]}" for key in changed)
        raise ValueError(
            f"{destination.name} was begun with other options ({was}; now {now}): use the same ones to go on with it, "
            "or a new destination"
        )
    if named["state"] != claim["state"]:
        raise ValueError(
            f"{destination.name} holds an older state of this run, which jobs.generate or jobs.retry has changed "
            "since; use a new destination, or delete this one"
        )


def write_note(destination: Location, note: Mapping[str, Any]) -> None:
    """Write `_dray.json`, in place of what it was. Raises OSError."""
    with replacement(destination.child(_NOTE)) as stream:
        stream.write((json.dumps(dict(note), indent=2, ensure_ascii=False) + "\n").encode("utf-8"))
