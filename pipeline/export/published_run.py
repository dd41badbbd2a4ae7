"""What a publication holds beside its data, so that its run can be made of it again, and audited (`dray audit`).

dray/run.json            what the run is, as in the run directory, without paths and without what decides no text; and
                         the engines that wrote it
dray/manifest.parquet    its units
dray/errors.parquet      the rows that failed, without what they held
dray/input/0000/NAME     the input files in their order, where they are published, too
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.counts import count_generations
from pipeline.errors import is_of_process
from pipeline.export.dataset_card import data_folder_of_card
from pipeline.inputs.records import parquet_schema
from pipeline.inputs.units import WorkUnit
from pipeline.run.commit import Receipt, part_content, provenance_of
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import without_paths
from pipeline.run.unit_rows import each_unit
from pipeline.schema import MANIFEST
from pipeline.storage.location import Location
from pipeline.storage.parquet import table_of, to_parquet
from pipeline.storage.whole_file import replace_file, to_json

RUN = "dray/run.json"
INPUT = "dray/input"
_MANIFEST, _ERRORS = "dray/manifest.parquet", "dray/errors.parquet"
_ENGINES = "engines"  # in run.json here, what wrote the parts


def files_beside(
    run: RunDirectory, folder: Path, engines: Sequence[Mapping[str, Any]], *, with_input: bool
) -> dict[str, Path]:
    """Write these files of a run to a folder, and return them by name. `engines` wrote its parts.

    Raises ValueError and OSError.
    """
    paths = list(dict.fromkeys(unit.file for unit in run.units()))
    width = max(4, len(str(len(paths))))  # so that they are listed in this order
    names = {path: f"{number:0{width}}/{Location.parse(path).short_name}" for number, path in enumerate(paths)}
    units = [{**asdict(unit), "file": names[unit.file], "file_version": ""} for unit in run.units()]
    may_have_failed = run.failed_unit_ids() & set(run.committed_unit_ids())
    with_errors = [unit for unit in run.units() if unit.unit_id in may_have_failed]
    errors = [
        {
            **row,
            "file": names.get(row["file"], ""),
            "message": row["message"] * is_of_process(row["message"]),
            "text": None,
        }
        for rows in each_unit(run, with_errors, ["row_id", "sample"])
        for row in rows.errors.to_pylist()
    ]
    contents = {
        RUN: to_json({**without_paths(run.run), _ENGINES: engines}),
        _MANIFEST: to_parquet(pa.Table.from_pylist(units, schema=MANIFEST)),
        _ERRORS: to_parquet(pa.Table.from_pylist(errors, schema=run.errors_schema)),
        **{f"{INPUT}/{name}": Location.parse(path).read_bytes() for path, name in names.items() if with_input},
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


@contextmanager
def opened(place: str) -> Iterator[RunDirectory]:
    """Open a run, or that of a publication or a part alone, made again in a folder of its own while the block runs."""
    location = Location.parse(place)
    with TemporaryDirectory(prefix="dray-published-") as folder:
        if is_part(location):
            yield _of_part(location, folder)
            return
        said = None if RunDirectory.exists(location) else location.child(RUN).read_if_there()
        try:
            run = RunDirectory.open(location) if said is None else _restored(location, json.loads(said), folder)
        except (LookupError, TypeError) as error:
            raise ValueError(
                f"{location.name}: what it has in dray/ is damaged ({error!r}); publish it again"
            ) from error
        yield run


def is_part(location: Location) -> bool:
    """Tell whether this is a file, such as a part that was copied out of its run."""
    return location.name.endswith(".parquet") and bool(location.info().is_file)


def _of_part(part: Location, folder: str) -> RunDirectory:
    """Return the run of a part, with its unit alone, made in an empty folder. Raises ValueError, and OSError."""
    try:
        said = provenance_of(parquet_schema(part))
        if said is None:
            raise ValueError("its footer does not say of which run it is")
        unit = WorkUnit(**said["unit"])
        directory = RunDirectory.create(folder, said["run"], [unit])
    except (pa.ArrowException, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{part.name}: no part of a run that says how it was made ({error}); name the run") from error
    replace_file(directory.part_path(unit.unit_id), part.read_bytes(), directory.temporary)
    return directory


def _restored(publication: Location, run: dict[str, Any], folder: str) -> RunDirectory:
    """Return the run of a publication, made again in an empty folder. Raises ValueError for damage, and OSError."""
    manifest, failed = (table_of(publication.child(name).read_bytes()).to_pylist() for name in (_MANIFEST, _ERRORS))
    run["settings"]["input"]["path"], engine = publication.child(INPUT).name, _one_of(run.pop(_ENGINES))
    directory = RunDirectory.create(folder, run, (WorkUnit(**unit) for unit in manifest))
    card = publication.child("README.md").read_bytes().decode("utf-8", "replace")
    if (data_folder := data_folder_of_card(card)) is None:
        raise ValueError(f"{publication.name}: its README.md names no data; dray publish, given again, finishes it")
    # Others may lie beside it, of a publication that goes on or was interrupted.
    names = [info.base_name for info in publication.child(data_folder).list() if info.extension == "parquet"]
    paths = [publication.child(f"{data_folder}/{name}").path for name in sorted(names)]
    schema, of_row = directory.generations_schema, ds.field("row_id")
    data: Any = ds.dataset(schema.empty_table())
    if paths:
        data = ds.dataset(paths, schema, format="parquet", filesystem=publication.filesystem)
    num_left = data.count_rows()
    for unit in directory.units():
        first = unit.row_id(0)
        rows = data.to_table(filter=(of_row >= first) & (of_row < first + (1 << 32)))
        errors = [error for error in failed if error["row_id"] >> 32 == unit.unit_id]
        num_left -= rows.num_rows
        if rows.num_rows or errors:
            receipt = Receipt(unit.unit_id, count_generations(rows, len(errors)), attempt=0)
            part = part_content(rows, receipt, engine)
            replace_file(directory.part_path(unit.unit_id), part, directory.temporary)
        if errors:
            table = pa.Table.from_pylist(errors, schema=directory.errors_schema)
            replace_file(directory.errors_path(unit.unit_id), to_parquet(table), directory.temporary)
    if num_left:
        raise ValueError(f"{publication.name}: {num_left} of its rows are of no unit of the run")
    return directory


def _one_of(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is said of all engines that wrote: which part is of which of them is not known any more."""
    values = {name: sorted({str(each.get(name)) for each in engines}) for each in engines for name in each}
    said = {name: value for each in engines for name, value in each.items()}
    said |= {name: " and ".join(several) for name, several in values.items() if len(several) > 1}
    return {**said, "exact_text": "no"} if "no" in values.get("exact_text", ()) else said
