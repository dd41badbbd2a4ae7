"""The publication of a run: the files that others read of it, and what a destination may hold and lacks of them."""

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.driver.summary import exactness_of
from jobs.names import tell
from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import Compaction
from pipeline.export.dataset_card import Corpus, dataset_card, run_of_card, unfinished_card
from pipeline.export.destinations import Destination, Folder
from pipeline.export.published_run import INPUT, RUN, files_beside
from pipeline.export.secret_scan import Secret, secrets_in_json, secrets_in_table
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location

_CARD, _REPORTS = "README.md", ("report.json", "report.html")
_CONFIGURATION = ("identity", "settings", "models")  # of run.json


def publish(run_directory: RunDirectory, place: Destination, options: argparse.Namespace) -> None:
    """Verify the run, and upload what the destination lacks of it. Raises ValueError if it must not be, and OSError.

    The options are those of `dray publish`.
    """
    with TemporaryDirectory(prefix="dray-publish-", dir=options.staging) as folder:
        files = _staged(run_directory, Path(folder), options)
        _publish(run_directory, files, place, is_dry_run=options.dry_run)


def _staged(run_directory: RunDirectory, folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Verify the run and write what is published of it to a folder; return the files by name, the card last.

    Raises ValueError for a run that must not be published, and OSError.
    """
    check = check_run(run_directory)
    if not check.is_complete and not options.partial:
        raise ValueError(
            f"{run_directory.location.name} is not complete: {check.problems[0]}; finish it with dray generate, or "
            "give --partial to publish what there is"
        )
    if check.damaged:
        raise ValueError(f"{len(check.damaged)} files of the run are damaged; dray verify --repair moves them away")
    cut = Cut(num_bytes=options.bytes_per_file)
    compaction = Compaction(run_directory, Location.parse(str(folder)), cut, is_partial=options.partial)
    compacted = list(compaction.files())
    totals = compaction.finish(compacted)
    data_folder = _data_folder(folder / file.name for file in compacted)
    files = {f"{data_folder}/{Path(file.name).name}": folder / file.name for file in compacted}
    for name in _REPORTS:
        content = run_directory.location.child(name).read_if_there()
        if content is not None:
            (folder / name).write_bytes(content)
            files[name] = folder / name
    files |= files_beside(run_directory, folder, check.engines, with_input=options.with_input)
    found = {field: what for field, what in _secrets(run_directory, files) if field not in options.allow_secrets_in}
    if found:  # the fields are named, and not their values
        raise ValueError(
            f"what looks like secrets is in {'; '.join(found.values())}. Remove it from the input and use a "
            f"new run, or say that it is meant: --allow-secrets-in {next(iter(found))}"
        )
    corpus = Corpus(
        run_directory,
        totals.counts,
        exactness_of(run_directory, check),
        totals.content_hash,
        len(compacted),
        is_partial=not check.is_complete,
        data_folder=data_folder,
    )
    title = options.title or run_directory.location.short_name
    (folder / _CARD).write_text(dataset_card(corpus, title, options.license), encoding="utf-8")
    return files | {_CARD: folder / _CARD}


def _data_folder(files: Iterable[Path]) -> str:
    """Return the folder of these files, whose name says what is in them: others never have the same names.

    A publication that was begun by an older version goes on only as long as this name stays what it is.
    """
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"data/{digest.hexdigest()[:16]}"


def _secrets(run_directory: RunDirectory, files: Mapping[str, Path]) -> Iterator[Secret]:
    said = {name: run_directory.run[name] for name in _CONFIGURATION if name in run_directory.run}
    yield from secrets_in_json(said, "run.json")
    for name, path in files.items():
        if name.endswith(".parquet"):
            parquet = pq.ParquetFile(path)
            for group in range(parquet.num_row_groups):
                yield from secrets_in_table(parquet.read_row_group(group), name)
        elif name.startswith(f"{INPUT}/"):
            with io.TextIOWrapper(cast(Any, pa.input_stream(str(path))), "utf-8", "replace") as lines:  # decompressed
                for line in lines:
                    yield from secrets_in_json(value := _of_json(line), name, name if value is line else "")
        elif name != RUN:  # which has nothing that was not looked at above
            text = path.read_text(encoding="utf-8")
            yield from secrets_in_json(json.loads(text) if name.endswith(".json") else text, name, name)


def _of_json(line: str) -> Any:
    """Return what a line of JSON lines holds; another one as it is."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _publish(run_directory: RunDirectory, files: Mapping[str, Path], place: Destination, *, is_dry_run: bool) -> None:
    """Upload what is missing or differs, and remove older data of this run. Raises ValueError for foreign data."""
    if is_dry_run and not isinstance(place, Folder):
        for name, path in files.items():
            print(f"{name}: {path.stat().st_size:,} bytes")
        print(f"{len(files)} files for {place.name}; without --dry-run those that the hub lacks are uploaded")
        return
    present = place.present()
    older = sorted(name for name in present if name.startswith("data/") and name not in files)
    missing = {name: path for name, path in files.items() if present.get(name) not in place.says(path)}
    # Data that this run does not have, and files that it would replace by others.
    foreign = sorted([*older, *(missing.keys() & present.keys())])
    run = run_of_card(place.read(_CARD).decode("utf-8", "replace")) if _CARD in present else None
    if run is not None and run != run_directory.manifest.token:
        raise ValueError(f"{place.name} holds another run (dray.run in its {_CARD}); use a new destination")
    if foreign and run is None:  # no card says whose they are
        raise ValueError(
            f"{place.name} has {', '.join(foreign[:3])}, which this command has not put there; use a new destination"
        )
    if is_dry_run:
        for name, path in files.items():
            print(f"{name}: {path.stat().st_size:,} bytes, {'to be uploaded' if name in missing else 'there'}")
        print("".join(f"{name}: to be removed\n" for name in older), end="")
        print(f"{len(files)} files for {place.name}; without --dry-run {len(missing)} of them are uploaded")
        return
    if not place.has_commits and _CARD not in present:  # or readers would take what is there for the whole
        with TemporaryDirectory(prefix="dray-card-") as folder:
            card = Path(folder) / _CARD
            card.write_text(unfinished_card(run_directory), encoding="utf-8")
            list(place.replace({_CARD: card}, ()))
    for name in place.replace(missing, older):
        print(f"{name}: uploaded", flush=True)
    removed = f", {len(older)} older ones removed" if older else ""
    num_there = len(files) - len(missing)
    tell(
        f"OK: {place.name} has {len(files)} files; {len(missing)} uploaded, {num_there} were there{removed}", sys.stdout
    )
