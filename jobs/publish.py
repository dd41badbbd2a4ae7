"""`python -m jobs.publish RUN DEST`: a run as a dataset: Parquet, a card and the report, on the hub or in a folder.

DEST is hf://datasets/OWNER/NAME (a private dataset is made unless it is there; --public makes a public one), or
.../NAME@BRANCH (made, without files, unless it is there), or a folder, local or a URI (s3://, gs://). There come
data/DIGEST/part-00000.parquet and on (as jobs.compact writes them; DIGEST is that of their content), report.json and
report.html if the run has them, and last README.md, the card. It says which files are the data, and what decides the
texts: models, seed, hashes. Older data of the run are removed after it, so that the data that the card names are always
whole: datasets.load_dataset, which goes by the card, reads no row twice and misses none. On the hub all is one commit.

The run is verified first. Files that are there already with the same content are not uploaded again, so that an
interrupted command goes on where it was. Keys and tokens in a column or in the run's configuration are refused by the
name of the field; --allow-secrets-in FIELD says that they are meant. Exit code 0, 1 if it was not published, 2 if it
cannot begin, 3 if it was interrupted.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ByteSize, TypeAdapter, ValidationError

from jobs.driver.exits import Exit, program
from jobs.driver.summary import exactness_of
from pipeline.export.compacted_file import Cut
from pipeline.export.compaction import Compaction
from pipeline.export.dataset_card import Corpus, dataset_card, run_of_card, unfinished_card
from pipeline.export.destinations import Destination, Folder, destination
from pipeline.export.secret_scan import Secret, secrets_in_json, secrets_in_table
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location

_DEFAULT_BYTES = "512MB"
_CARD, _REPORTS = "README.md", ("report.json", "report.html")
_CONFIGURATION = ("identity", "settings", "models")  # of run.json


class NotPublished(Exception):
    """The run, or what is at the destination, forbids it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish the run, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        run_directory, place = (
            RunDirectory.open(options.run),
            destination(options.destination, is_private=not options.public),
        )
        if isinstance(place, Folder):
            _refuse_inside(run_directory, place.location)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.BAD_CONFIGURATION
    try:
        with TemporaryDirectory(prefix="dray-publish-", dir=options.staging) as folder:
            files = _staged(run_directory, Path(folder), place, options)
            _publish(run_directory, files, place, is_dry_run=options.dry_run)
    except (NotPublished, ValueError, OSError, pa.ArrowException) as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        print("\ninterrupted; the same command uploads what is missing", file=sys.stderr)
        return Exit.INCOMPLETE
    return Exit.COMPLETE


@dataclass(frozen=True)
class Staged:
    """A file that is ready to be published."""

    name: str
    path: Path


def _staged(run_directory: RunDirectory, folder: Path, place: Destination, options: argparse.Namespace) -> list[Staged]:
    """Verify the run and write what is published of it to a folder, the card last. Raises NotPublished."""
    check = check_run(run_directory)
    if not check.is_complete and not options.partial:
        raise NotPublished(
            f"{run_directory.location.name} is not complete: {check.problems[0]}; finish it with jobs.generate, or "
            "give --partial to publish what there is"
        )
    if check.damaged:
        raise NotPublished(f"{len(check.damaged)} files of the run are damaged; jobs.verify --repair moves them away")
    cut = Cut(num_bytes=options.bytes_per_file)
    compaction = Compaction(run_directory, Location.parse(str(folder)), cut, is_partial=options.partial)
    compacted = list(compaction.files())
    totals = compaction.finish(compacted)
    data_folder = _data_folder([folder / file.name for file in compacted])
    files = [Staged(f"{data_folder}/{Path(file.name).name}", folder / file.name) for file in compacted]
    for name in _REPORTS:
        content = run_directory.location.child(name).read_if_there()
        if content is not None:
            (folder / name).write_bytes(content)
            files.append(Staged(name, folder / name))
    _refuse_secrets(run_directory, files, options.allow_secrets_in)
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
    return [*files, Staged(_CARD, folder / _CARD)]


def _data_folder(files: Sequence[Path]) -> str:
    """Return the folder of these files, whose name says what is in them: others never have the same names."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"data/{digest.hexdigest()[:16]}"


def _refuse_secrets(run_directory: RunDirectory, files: Sequence[Staged], allowed: Sequence[str]) -> None:
    """Raise NotPublished, naming the fields but not their values, if something looks like a secret."""
    found = {each.field: each for each in _secrets(run_directory, files) if each.field not in allowed}
    if found:
        raise NotPublished(
            f"what looks like secrets is in {'; '.join(map(str, found.values()))}. Remove it from the input and use a "
            f"new run, or say that it is meant: --allow-secrets-in {next(iter(found))}"
        )


def _secrets(run_directory: RunDirectory, files: Sequence[Staged]) -> Iterator[Secret]:
    said = {name: run_directory.run[name] for name in _CONFIGURATION if name in run_directory.run}
    yield from secrets_in_json(said, "run.json")
    for file in files:
        if file.name.endswith(".parquet"):
            parquet = pq.ParquetFile(file.path)
            for group in range(parquet.num_row_groups):
                yield from secrets_in_table(parquet.read_row_group(group), file.name)
        elif file.name.endswith(".json"):
            yield from secrets_in_json(json.loads(file.path.read_bytes()), file.name, file.name)
        else:
            yield from secrets_in_json(file.path.read_text(encoding="utf-8"), file.name, file.name)


def _publish(run_directory: RunDirectory, files: Sequence[Staged], place: Destination, *, is_dry_run: bool) -> None:
    """Upload what is missing or differs, and remove older data of this run. Raises NotPublished for foreign data."""
    if is_dry_run and not isinstance(place, Folder):
        for file in files:
            print(f"{file.name}: {file.path.stat().st_size:,} bytes")
        print(f"{len(files)} files for {place.name}; without --dry-run those that the hub lacks are uploaded")
        return
    present = place.present()
    wanted = {file.name for file in files}
    older = sorted(name for name in present if name.startswith("data/") and name not in wanted)
    missing = {file.name: file.path for file in files if present.get(file.name) not in place.says(file.path)}
    _refuse_another(
        run_directory, place, has_card=_CARD in present, foreign=[*older, *(missing.keys() & present.keys())]
    )
    if is_dry_run:
        for file in files:
            what = "to be uploaded" if file.name in missing else "there"
            print(f"{file.name}: {file.path.stat().st_size:,} bytes, {what}")
        print("".join(f"{name}: to be removed\n" for name in older), end="")
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
    print(f"OK: {place.name} has {len(files)} files; {len(missing)} uploaded, {num_there} were there{removed}")


def _refuse_another(run_directory: RunDirectory, place: Destination, *, has_card: bool, foreign: Sequence[str]) -> None:
    """Raise NotPublished if the destination holds another run, or `foreign` files and no card that says whose they are.

    Foreign are data that this run does not have, and files that it would replace by others.
    """
    run = run_of_card(place.read(_CARD).decode("utf-8", "replace")) if has_card else None
    if run is not None and run != run_directory.manifest.token:
        raise NotPublished(f"{place.name} holds another run (dray.run in its {_CARD}); use a new destination")
    if foreign and run is None:
        raise NotPublished(
            f"{place.name} has {', '.join(sorted(foreign)[:3])}, which this command has not put there; "
            "use a new destination"
        )


def _refuse_inside(run_directory: RunDirectory, place: Location) -> None:
    source = run_directory.location
    if source.is_local == place.is_local and f"{place.path.rstrip('/')}/".startswith(f"{source.path.rstrip('/')}/"):
        raise ValueError(f"{place.name} is inside the run; publish it to a folder of its own")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("publish"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, local or a URI")
    add(
        "destination",
        metavar="DEST",
        help="hf://datasets/OWNER/NAME or .../NAME@BRANCH, or a folder, local or a URI",
    )
    add("--title", help="title of the card; the name of the run directory unless given")
    add("--license", help="license of the texts, as the hub names it, such as apache-2.0")
    add("--public", action="store_true", help="make a dataset that does not exist on the hub public")
    add("--partial", action="store_true", help="publish a run with missing units as it is")
    add("--dry-run", action="store_true", help="write the files to the staging folder, and say what would be uploaded")
    add(
        "--allow-secrets-in",
        metavar="FIELD",
        action="append",
        default=[],
        help="publish this column or field although it looks as if it held secrets; may be given again",
    )
    add("--bytes-per-file", metavar="SIZE", type=_size, default=_size(_DEFAULT_BYTES), help="size of a file; 512MB")
    add(
        "--staging",
        metavar="FOLDER",
        help="where a folder for all files is made, and deleted at the end; unless given TMPDIR",
    )
    return parser


def _size(text: str) -> int:
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"expected a size such as 200MB or 1GiB, got {text!r}") from error


if __name__ == "__main__":
    sys.exit(main())
