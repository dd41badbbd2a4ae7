"""What a publication holds beside its data, so that its run can be made of it again, and audited (`dray audit`).

dray/run.json            what the run is, as in the run directory, without paths and without what decides no text
dray/manifest.parquet    its units
dray/errors.parquet      the rows that failed, without what they held
dray/input/0000/NAME     the input files in their order, where they are published, too
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.counts import count_generations
from pipeline.errors import is_of_process
from pipeline.export.dataset_card import model_name
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, part_content
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_errors
from pipeline.schema import MANIFEST
from pipeline.storage.location import Location
from pipeline.storage.parquet import table_of, to_parquet
from pipeline.storage.whole_file import replace_file, to_json

RUN = "dray/run.json"
_MANIFEST, _ERRORS, _INPUT = "dray/manifest.parquet", "dray/errors.parquet", "dray/input"
_DATA = re.compile(r"data/[0-9a-f]+/part-\d+\.parquet")
# Fields of sections of the configuration that decide texts; None: all of the section.
_DECIDING: Mapping[str, tuple[str, ...] | None] = {
    "input": None,
    "models": None,
    "chat": None,
    "sampling": None,
    "program": None,
    "engine": (
        "backend",
        "max_model_len",
        "verification",
        "num_slots",
        "num_speculative_tokens",
    ),  # rows may ask for as many
    "run": ("seed",),
}


def files_beside(run: RunDirectory, folder: Path, *, with_input: bool) -> dict[str, Path]:
    """Write these files of a run to a folder, and return them by name. Raises ValueError and OSError."""
    paths = {path: f"{number:04d}/{Location.parse(path).short_name}" for number, path in enumerate(_files(run))}
    units = [{**asdict(unit), "file": paths[unit.file], "file_version": ""} for unit in run.units()]
    failed = run.failed_unit_ids() & set(run.committed_unit_ids())
    errors = [row for unit_id in sorted(failed) for row in read_errors(run, unit_id).to_pylist()]
    for row in errors:
        said = row["message"] if is_of_process(row["message"]) else ""
        row.update(file=paths.get(row["file"], ""), message=said)
    contents: dict[str, Callable[[], bytes]] = {
        RUN: partial(to_json, _without_paths(run.run)),
        _MANIFEST: lambda: to_parquet(pa.Table.from_pylist(units, schema=MANIFEST)),
        _ERRORS: lambda: to_parquet(pa.Table.from_pylist(errors, schema=run.errors_schema)),
        **{f"{_INPUT}/{name}": Location.parse(path).read_bytes for path, name in paths.items() if with_input},
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content())
    return {name: folder / name for name in contents}


@contextmanager
def opened(place: str) -> Iterator[RunDirectory]:
    """Open a run, or that of a publication, which is made again in a folder of its own while the block runs."""
    location = Location.parse(place)
    with TemporaryDirectory(prefix="dray-published-") as folder:
        run = None if RunDirectory.exists(location) else restored(location, folder)
        yield run or RunDirectory.open(location)


def restored(publication: Location, folder: str) -> RunDirectory | None:
    """Return the run of a publication, made again in an empty folder; None if nothing here says which run it is.

    Raises ValueError for what is damaged, and OSError.
    """
    said = publication.child(RUN).read_if_there()
    if said is None:
        return None
    run, files = json.loads(said), publication.files()
    run["settings"]["input"]["path"] = publication.child(_INPUT).name
    manifest, failed = (table_of(publication.child(name).read_bytes()).to_pylist() for name in (_MANIFEST, _ERRORS))
    directory = RunDirectory.create(folder, run, (WorkUnit(**unit) for unit in manifest))
    schema, engines = directory.generations_schema, _engines(publication)
    paths = [publication.child(name).path for name in sorted(files) if _DATA.fullmatch(name)]
    data: Any = ds.dataset(paths, schema, format="parquet", filesystem=publication.filesystem)
    num_left, of_row = data.count_rows(), ds.field("row_id")
    for unit in directory.units():
        first = unit.row_id(0)
        rows = data.to_table(filter=(of_row >= first) & (of_row < first + (1 << 32)))
        errors = [error for error in failed if error["row_id"] >> 32 == unit.unit_id]
        num_left -= rows.num_rows
        if rows.num_rows or errors:
            receipt = Receipt(unit.unit_id, count_generations(rows, len(errors)), attempt=0)
            part = part_content(rows, receipt, engines[0] if len(engines) == 1 else None)
            replace_file(directory.part_path(unit.unit_id), part, directory.temporary)
        if errors:
            table = pa.Table.from_pylist(errors, schema=directory.errors_schema)
            replace_file(directory.errors_path(unit.unit_id), to_parquet(table), directory.temporary)
    if num_left:
        raise ValueError(f"{publication.name}: {num_left} of its rows are of no unit of the run")
    return directory


def _files(run: RunDirectory) -> Iterator[str]:
    return iter(dict.fromkeys(unit.file for unit in run.units()))


def _engines(publication: Location) -> list[dict[str, Any]]:
    report: dict[str, Any] = json.loads(publication.child("report.json").read_if_there() or b"{}")
    return list(report.get("engines", []))


def _without_paths(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json with the names of models in place of their folders."""
    settings = run.get("settings", {})
    deciding = {
        section: {name: value for name, value in settings[section].items() if names is None or name in names}
        for section, names in _DECIDING.items()
        if section in settings
    }
    own = {"models": _names(settings.get("models", {})), "input": {**deciding.get("input", {}), "path": _INPUT}}
    kept = {name: value for name, value in run.items() if name not in ("manifest", "settings", "models")}
    said = {**deciding, **own, "output": {"path": "."}, "task": settings.get("task", "generate")}
    return {**kept, "models": _names(run.get("models", {})), "settings": said}


def _names(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of models without their drafts, on which no text depends, and by name."""
    named = {name: value for name, value in models.items() if name not in ("draft", "candidates", "draft_vocabulary")}
    return named | {name: model_name(named.get(name)) for name in ("target", "tokenizer") if name in named}
