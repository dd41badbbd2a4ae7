"""What a publication holds beside its data, so that its run can be made of it again, and audited (`dray audit`).

dray/run.json            what the run is, as in the run directory, without paths and without what decides no text
dray/manifest.parquet    its units
dray/errors.parquet      the rows that failed, without what they held
dray/input/0000/NAME     the input files in their order, where they are published, too
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
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
_DECIDING: Mapping[str, tuple[str, ...]] = {
    "engine": ("max_model_len", "num_slots", "num_speculative_tokens"),
    "run": ("seed",),
}


def deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run's configuration that decide its texts, without the draft, which does not."""
    kept = {section: dict(settings.get(section, {})) for section in ("input", "models", "chat", "sampling")}
    for name in ("draft", "candidates", "draft_vocabulary"):
        kept["models"].pop(name, None)
    for section, names in _DECIDING.items():
        kept[section] = {name: value for name, value in settings.get(section, {}).items() if name in names}
    return kept


def files_beside(run: RunDirectory, folder: Path, *, with_input: bool) -> dict[str, Path]:
    """Write these files of a run to a folder, and return them by name. Raises ValueError and OSError."""
    paths = {path: number for number, path in enumerate(dict.fromkeys(unit.file for unit in run.units()))}
    names = {path: f"{number:04d}/{Location.parse(path).short_name}" for path, number in paths.items()}
    units = [{**asdict(unit), "file": names[unit.file], "file_version": ""} for unit in run.units()]
    errors = [
        {**row, "file": names.get(row["file"], ""), "message": row["message"] * is_of_process(row["message"])}
        for unit_id in sorted(run.failed_unit_ids() & set(run.committed_unit_ids()))
        for row in read_errors(run, unit_id).to_pylist()
    ]
    contents = {
        RUN: to_json(_without_paths(run.run)),
        _MANIFEST: to_parquet(pa.Table.from_pylist(units, schema=MANIFEST)),
        _ERRORS: to_parquet(pa.Table.from_pylist(errors, schema=run.errors_schema)),
        **{f"{_INPUT}/{name}": Location.parse(path).read_bytes() for path, name in names.items() if with_input},
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


@contextmanager
def opened(place: str) -> Iterator[RunDirectory]:
    """Open a run, or that of a publication, which is made again in a folder of its own while the block runs."""
    location = Location.parse(place)
    with TemporaryDirectory(prefix="dray-published-") as folder:
        said = None if RunDirectory.exists(location) else location.child(RUN).read_if_there()
        yield RunDirectory.open(location) if said is None else _restored(location, json.loads(said), folder)


def _restored(publication: Location, run: dict[str, Any], folder: str) -> RunDirectory:
    """Return the run of a publication, made again in an empty folder. Raises ValueError for damage, and OSError."""
    manifest, failed = (table_of(publication.child(name).read_bytes()).to_pylist() for name in (_MANIFEST, _ERRORS))
    run["settings"]["input"]["path"] = publication.child(_INPUT).name
    directory = RunDirectory.create(folder, run, (WorkUnit(**unit) for unit in manifest))
    engines = json.loads(publication.child("report.json").read_if_there() or b"{}").get("engines", [])
    paths = [publication.child(name).path for name in sorted(publication.files()) if _DATA.fullmatch(name)]
    schema, of_row = directory.generations_schema, ds.field("row_id")
    data: Any = ds.dataset(paths, schema, format="parquet", filesystem=publication.filesystem)
    num_left = data.count_rows()
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


def _without_paths(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json with the names of models in place of their folders."""
    kept = {name: value for name, value in run.items() if name not in ("manifest", "settings", "models")}
    models = {name: model_name(run.get("models", {}).get(name)) for name in ("target", "tokenizer")}
    settings = deciding(run.get("settings", {}))
    settings["input"]["path"], settings["models"] = "", {**settings["models"], **models}
    return {**kept, "models": models, "settings": settings}
