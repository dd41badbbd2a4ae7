"""The run directory: what a run is, what it has done, and what is missing.

run.json                   what the run is; its existence means that the manifest is complete
manifest/part-*.parquet    the work units, in the parts that run.json names; an unfinished creation may have left others
data/part-*.parquet        the generations of one unit each; the existence of a part is its commit
errors/part-*.parquet      the unit's failed rows, if any; written before the part in data/, amended after it
tools/unit-*/*.json        results of tools that a program has called, until its unit is committed
drafts/*.json              the draft that a trial took (choice.json); those that were offered later, and their fate
report.json  _SUCCESS      written at the end, and report.html at any time
_LEASE                     names the driver that works on the run, while one does
quarantine/                damaged and foreign files, each with its reason beside it (dray verify --repair)
_tmp/                      unfinished files (local disks only)
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from pipeline.id_set import IdSet
from pipeline.inputs.carried import types_from_dict
from pipeline.inputs.units import WorkUnit
from pipeline.run.manifest import ManifestSummary, manifest_parts, read_manifest, write_manifest
from pipeline.schema import OPTIONAL_COLUMNS, TEXT, ColumnSet, errors_schema, generations_schema
from pipeline.storage.listing import list_parts
from pipeline.storage.location import Location
from pipeline.storage.whole_file import create_file, replace_file, to_json

COMMIT_LOCK, DRIVER_LOCK = "commit.lock", "driver.lock"  # in _tmp/, on local disks
_CREATING = "_CREATING"  # exists from the first to the last moment of a creation
_MANIFEST_PART_NAME = re.compile(r"part-[0-9a-f]{16}-\d{5,}\.parquet")
_CREATION_SCRATCH_NAME = re.compile(rf"_tmp/({_CREATING}|run\.json|{_MANIFEST_PART_NAME.pattern})\.")
_SHORTEST_PARQUET = 12  # bytes: the magic twice and a length
_PART_NAME = re.compile(r"part-(\d{9,})\.parquet")


@dataclass(frozen=True)
class RunDirectory:
    """An opened run. `run` is the content of run.json: what the caller created it with, and the plan's totals.

    run["identity"] decides which tokens are generated and may not change; run["settings"] may. run["manifest"] has the
    totals.
    """

    location: Location
    run: dict[str, Any]

    @staticmethod
    def exists(path: str | Location) -> bool:
        """Tell whether there is a run at `path`, complete with its manifest."""
        return _location(path).child("run.json").exists()

    @classmethod
    def create(cls, path: str | Location, run: Mapping[str, Any], units: Iterable[WorkUnit]) -> RunDirectory:
        """Create a run with the manifest of `units`; `run` has at least "identity" and "carried".

        Several processes may try at once: each writes manifest parts of its own, and the first run.json wins. Files of
        an interrupted creation do no harm. Raises ValueError if the folder holds a run already, also one that another
        process creates meanwhile, or any foreign file.
        """
        location = _location(path)
        assert {"identity", "carried"} <= run.keys()
        assert "manifest" not in run
        refuse_occupied(location)
        for folder in ("manifest", "data", "errors", *(["_tmp"] if location.is_local else [])):
            location.child(folder).make_folder()
        temporary = location.child("_tmp")
        replace_file(location.child(_CREATING), b"", temporary)
        manifest, run_json = location.child("manifest"), location.child("run.json")
        summary = write_manifest(manifest, units, secrets.token_hex(8), temporary)
        own_parts = manifest_parts(manifest, summary)
        run = {**run, "manifest": asdict(summary)}
        content = to_json({**run, "digest": _digest(run)})
        # A store cannot refuse a second run.json; looking first leaves only a moment in which two processes can win.
        won = not run_json.exists() and create_file(run_json, content, temporary)
        if not won:
            for part in own_parts:
                part.remove()
        elif location.is_local:  # on a store another creation may yet replace run.json, and need its parts
            own_paths = {part.path for part in own_parts}
            for info in manifest.list():  # others are of creations that died, or that have lost and are about to notice
                if _MANIFEST_PART_NAME.fullmatch(info.base_name) and info.path not in own_paths:
                    manifest.at(info.path).remove()
        location.child(_CREATING).remove()
        if not won:
            raise ValueError(f"{location.name}: another process created a run here just now; run the command again")
        return cls.open(location)

    @classmethod
    def open(cls, path: str | Location) -> RunDirectory:
        """Open the run at `path`. Raises ValueError if there is none, or if run.json is not as it was written."""
        location = _location(path)
        try:
            run = json.loads(location.child("run.json").read_bytes())
        except FileNotFoundError as error:
            raise ValueError(f"{location.name}: no run here (no run.json); name the OUT of a dray generate") from error
        except ValueError as error:
            raise ValueError(f"{location.name}: run.json is not JSON ({error}); restore it from a copy") from error
        if missing := _missing_keys(run):
            raise ValueError(
                f"{location.name}: not a run of this version, or damaged: run.json has no {', '.join(missing)}; "
                "restore it from a copy, or use a new output directory"
            )
        if run.pop("digest") != _digest(run):
            raise ValueError(
                f"{location.name}: run.json is damaged, or was edited: its digest is not that of its content; "
                "restore it from a copy, or use a new output directory"
            )
        return cls(location, run)

    @property
    def manifest(self) -> ManifestSummary:
        """The plan's totals."""
        return ManifestSummary(**self.run["manifest"])

    @property
    def id_type(self) -> pa.DataType:
        """The type of `id` in data/ and errors/: a string in runs whose run.json does not name one."""
        return pa.int64() if self.run.get("id_type") == "int64" else TEXT

    def has(self, columns: ColumnSet | Literal["draft_version"]) -> bool:
        """Tell whether data/ has these optional columns; runs begun before there were rounds and versions lack them."""
        return self.run.get("task") == "score" if columns == "scores" else bool(self.run.get(f"has_{columns}"))

    @property
    def column_sets(self) -> list[ColumnSet]:
        """Which optional columns data/ has."""
        return [name for name in OPTIONAL_COLUMNS if self.has(name)]

    @cached_property
    def generations_schema(self) -> pa.Schema:
        """The schema of every part in data/."""
        types = types_from_dict(self.run["carried"]), self.id_type
        return generations_schema(*types, self.column_sets, has_draft_version=self.has("draft_version"))

    @cached_property
    def errors_schema(self) -> pa.Schema:
        """The schema of every file in errors/."""
        return errors_schema(self.id_type, self.column_sets)

    @property
    def identity_digest(self) -> str:
        """A sha256 of what decides the tokens: two runs with the same digest write the same corpus."""
        return _digest(self.run["identity"])

    def refuse_if_changed(self, identity: Mapping[str, Any]) -> None:
        """Raise ValueError, naming every difference, if `identity` is not what the run was created with."""
        if changes := "\n".join(self.changes(identity).values()):
            raise ValueError(
                f"{self.location.name} holds a run that would write other tokens:\n{changes}\n"
                "use a new output directory, or restore the old values to go on with this run"
            )

    def changes(self, identity: Mapping[str, Any]) -> dict[str, str]:
        """Return a line for each field of `identity` that is not as the run was created with, by its name."""
        new = _flatten(json.loads(to_json(identity)))  # as it is read back: tuples become lists, keys strings
        old, said = _flatten(self.run["identity"]), "  {}: was {}, is {}"
        pairs = {name: (old.get(name, "absent"), new.get(name, "absent")) for name in sorted(old.keys() | new.keys())}
        return {name: said.format(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]}

    def units(self) -> Iterator[WorkUnit]:
        """Yield every unit of the run, in order."""
        return read_manifest(self.location.child("manifest"), self.manifest)

    def committed_unit_ids(self) -> IdSet:
        """Return the ids of the units that are done, from one listing of data/."""
        return IdSet(unit_id for unit_id, _ in self._files("data"))

    def committed_parts(self) -> dict[int, fs.FileInfo]:
        """Return the file of each unit that is done, from one listing of data/."""
        return dict(self._files("data"))

    def failed_unit_ids(self) -> set[int]:
        """Return the ids of the units that have an errors file; an unfinished attempt may have left one."""
        return {unit_id for unit_id, _ in self._files("errors")}

    def truncated_parts(self) -> dict[str, str]:
        """Return the reason for each part ("data/part-...") that is too short to be Parquet, from one listing."""
        return {
            f"data/{info.base_name}": f"it has {info.size} bytes, and the shortest Parquet file {_SHORTEST_PARQUET}"
            for _, info in self._files("data")
            if info.is_file and info.size < _SHORTEST_PARQUET
        }

    def _files(self, folder: str) -> Iterator[tuple[int, fs.FileInfo]]:
        """Yield the id of each unit that has a file in this folder, with the file, from one listing."""
        for info in list_parts(self.location.child(folder), self.manifest.num_units):
            if name := _PART_NAME.fullmatch(info.base_name):
                yield int(name[1]), info

    def missing_units(self) -> Iterator[WorkUnit]:
        """Yield the units that are not done, in order."""
        committed = self.committed_unit_ids()
        return (unit for unit in self.units() if unit.unit_id not in committed)

    def part_path(self, unit_id: int) -> Location:
        """Return where the unit's generations are, or will be."""
        return self.location.child(f"data/part-{unit_id:09d}.parquet")

    def errors_path(self, unit_id: int) -> Location:
        """Return where the unit's error rows are, if it has any."""
        return self.location.child(f"errors/part-{unit_id:09d}.parquet")

    @property
    def temporary(self) -> Location:
        """The folder for unfinished files on a local disk."""
        return self.location.child("_tmp")

    def refuse_inside(self, place: Location, doing: str) -> None:
        """Raise ValueError if a place to which `doing` ("publish") writes the run is in it: the run stays as it is."""
        inside, whole = (f"{each.path.rstrip('/')}/" for each in (place, self.location))
        if place.is_local == self.location.is_local and inside.startswith(whole):
            raise ValueError(f"{place.name} is inside the run; {doing} it to a folder of its own")

    def try_writing(self) -> None:
        """Write a small file and delete it. Raises OSError if nothing can be written from here."""
        trial = self.temporary.child(f"trial-{uuid.uuid4().hex}")
        replace_file(trial, b"trial", self.temporary)
        trial.remove()

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Write report.json, in place of an older one."""
        replace_file(self.location.child("report.json"), to_json(report), self.temporary)

    def add_to_report(self, name: str, value: Mapping[str, Any]) -> None:
        """Write one more entry into report.json, in place of an older one of that name."""
        location = self.location.child("report.json")
        report = json.loads(location.read_bytes()) if location.exists() else {}
        self.write_report({**report, name: value})

    def mark_success(self) -> None:
        """Write _SUCCESS: the run was checked and is complete."""
        replace_file(self.location.child("_SUCCESS"), b"", self.temporary)

    def unmark_success(self) -> None:
        """Remove _SUCCESS, if it is there, because the run is about to change or is no longer known to be complete."""
        self.location.child("_SUCCESS").remove()

    def is_success(self) -> bool:
        """Tell whether the run was checked and is complete."""
        return self.location.child("_SUCCESS").exists()


def _location(path: str | Location) -> Location:
    return path if isinstance(path, Location) else Location.parse(path)


def _missing_keys(run: Any) -> list[str]:
    """Return the keys that every run.json of this version has and this one lacks."""
    if not isinstance(run, dict):
        return ["object in it"]
    kinds = {"identity": dict, "manifest": dict, "carried": dict, "digest": str}
    missing = [key for key, kind in kinds.items() if not isinstance(run.get(key), kind)]
    if "manifest" not in missing:
        totals = (field.name for field in fields(ManifestSummary))
        missing += [f"manifest.{name}" for name in totals if name not in run["manifest"]]
    return missing


def refuse_occupied(path: str | Location) -> None:
    """Raise ValueError if the folder holds any file that an unfinished creation has not written."""
    location = _location(path)
    if location.child("run.json").exists():
        raise ValueError(f"{location.name} holds a run already; open it, or use a new output directory")
    if location.info().type == fs.FileType.File:
        raise ValueError(f"{location.name} is a file; the output directory must be a folder")
    files = location.files().keys()
    parts = {name for name in files if name.startswith("manifest/") and _MANIFEST_PART_NAME.fullmatch(name[9:])}
    ours = {_CREATING} | {name for name in files if _CREATION_SCRATCH_NAME.match(name)}
    foreign = sorted(files - ours - parts)
    if foreign or (parts and _CREATING not in files):
        raise ValueError(
            f"{location.name} is not empty and is not a run: it has {(foreign or sorted(files))[:5]}; "
            "use a new output directory (nothing here was touched)"
        )


def _digest(run: Mapping[str, Any]) -> str:
    """Return the sha256 of run.json's content, whatever its spacing and order."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Return the values of a nested object as JSON, by dotted name; an empty object is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: json.dumps(value, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for name, inner in value.items():
        flat |= _flatten(inner, f"{prefix}.{name}" if prefix else name)
    return flat
