"""The input files of a run, whether they are still the same, and text files as records with byte ranges.

Records are lines, and CSV records that may span lines. A byte range found while planning is read again by a worker, so
this is the only module that decides where a record ends. A blank record (whitespace alone) is skipped and not counted.
In a compressed file offsets count the bytes that it holds. Lines end at "\\n" or "\\r\\n"; a byte order mark at the
start of the file is not data.
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
from pyarrow import fs

from pipeline.storage.location import Location, file_version

# Files beside the data of a folder: about it, or another program's checksums.
_BESIDE_DATA = re.compile(
    r"(readme|licen[cs]e|notice|citation)(\.(bib|cff|html?|md|rst|txt))?|dataset_(infos?|dict)\.json|.*\.crc",
    re.IGNORECASE,
)
_BUFFER_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # by the end of a file's name

# The default limit of 128 KiB is less than a long prompt. This one only bounds how much a quote that is never closed
# can swallow. It is a setting of the csv module, and so of the whole process.
csv.field_size_limit(1 << 27)


class InputFile(NamedTuple):
    """One input file as it was when the run was planned. `path` is an absolute path or a URI."""

    path: str
    size: int
    version: str


def list_files(paths: str | Sequence[str]) -> list[InputFile]:
    """List the files that the paths name: each a file, a folder (searched to its depth) or a glob, local or a URI.

    The files of a folder or a glob are sorted by path. A file is skipped if its name, or that of a folder below the
    named one, starts with "." or "_"; and in a folder, if it is called README, LICENSE or the like. Raises ValueError
    if a path names no file, or if two paths name the same one.
    """
    files: list[InputFile] = []
    for path in [paths] if isinstance(paths, str) else paths:
        found = sorted(_find(path))
        if not found:
            raise ValueError(
                f"no input file at {path!r}: looked for a file, a folder with files and a glob "
                "(names that start with '.' or '_' are skipped, and in a folder README, LICENSE and the like)"
            )
        files += found
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            raise ValueError(f"{file.path} is named twice by the input paths {paths}; name it once")
        seen.add(file.path)
    if not files:
        raise ValueError("no input paths were given")
    return files


def inputs_digest(files: Iterable[InputFile]) -> str:
    """Return a sha256 over every file's path, size and version: what a run's identity keeps of its input."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.version}\n".encode())
    return digest.hexdigest()


def refuse_changed_file(planned: InputFile) -> None:
    """Raise ValueError if the file is not the one that was planned for."""
    info = Location.parse(planned.path).info()
    if info.type != fs.FileType.File:
        raise ValueError(f"{planned.path}: the input changed since the run was planned: the file is gone; put it back")
    if (info.size, file_version(info)) != (planned.size, planned.version):
        raise ValueError(
            f"{planned.path}: the input changed since the run was planned: it had {planned.size} bytes and "
            f"version {planned.version!r}, and has {info.size} and {file_version(info)!r}; "
            "restore the file or use a new output directory"
        )


@contextmanager
def refuse_unreadable(path: str, format_: str) -> Iterator[None]:
    """Raise ValueError, naming the file, if the block fails to read it: gone, truncated or not of its format."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: cannot be read as {format_}: {error}") from error


def _find(path: str) -> Iterator[InputFile]:
    """Yield the files that one path names, in no order."""
    base, pattern = _split_glob(path)
    folder = Location.parse(base)
    info = folder.info()
    if pattern is None and info.type == fs.FileType.File:
        yield _input_file(folder, info)
    if info.type != fs.FileType.Directory:
        return
    matches = re.compile(".*" if pattern is None else _glob_regex(pattern))
    for below, info in folder.files().items():
        hidden = any(part.startswith((".", "_")) for part in below.split("/"))
        is_beside = pattern is None and _BESIDE_DATA.fullmatch(below.rpartition("/")[2])
        if not hidden and not is_beside and matches.fullmatch(below):
            yield _input_file(folder.at(info.path), info)


def _input_file(location: Location, info: fs.FileInfo) -> InputFile:
    return InputFile(location.name, info.size, file_version(info))


def _split_glob(path: str) -> tuple[str, str | None]:
    """Split a path into the folder to search and the glob below it; return (path, None) if there is no glob."""
    is_uri = "://" in path
    wild = re.search(r"[*\[]" if is_uri else r"[*?\[]", path)  # in a URI a question mark starts the options
    if wild is None or (not is_uri and Location.parse(path).exists()):
        return path, None
    path, question_mark, options = path.partition("?") if is_uri else (path, "", "")
    cut = path.rfind("/", 0, wild.start()) + 1
    return (path[:cut] or ".") + question_mark + options, path[cut:]


def _glob_regex(pattern: str) -> str:
    """Translate a glob to a regular expression: * and ? stay within a folder, ** crosses folders, [...] is a set."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        known.get(part) or (part.replace("[!", "[^", 1) if part.startswith("[") else re.escape(part)) for part in parts
    )


class TextRecord(NamedTuple):
    """The bytes [byte_start, byte_end) of a file, line end included; no byte order mark in `data`."""

    byte_start: int
    byte_end: int
    data: bytes


def split_lines(location: Location, byte_start: int = 0, byte_end: int | None = None) -> Iterator[TextRecord]:
    """Yield the lines of a byte range that are not blank; the range begins and ends where lines do."""
    return (line for line in all_lines(location, byte_start, byte_end) if line.data.strip())


def split_csv(
    location: Location, separator: str, byte_start: int = 0, byte_end: int | None = None
) -> Iterator[TextRecord]:
    """Yield the CSV records of a byte range that are not blank, header included; a quoted field may hold line ends.

    The csv module decides where a record ends: it pulls as many lines as the record needs.
    """
    pulled: list[TextRecord] = []

    def pull() -> Iterator[str]:
        for line in all_lines(location, byte_start, byte_end):
            pulled.append(line)
            yield line.data.decode("utf-8", errors="surrogateescape")

    reader = csv.reader(pull(), delimiter=separator, strict=True)
    while True:
        pulled.clear()
        try:
            next(reader)
        except StopIteration:
            return
        except csv.Error:
            pass  # the record ends where the parser gave up; parse_csv meets the same error and reports it
        data = b"".join(line.data for line in pulled)
        if data.strip():
            yield TextRecord(pulled[0].byte_start, pulled[-1].byte_end, data)


def parse_csv(data: bytes, separator: str) -> list[str]:
    """Return the fields of one CSV record. Raises ValueError (not UTF-8) or csv.Error (quotes that do not match)."""
    return next(csv.reader(io.StringIO(data.decode("utf-8"), newline="\n"), delimiter=separator, strict=True))


def compression_of(path: str) -> str | None:
    """Return how a file is compressed, by its name, as Arrow calls it; None if it is not."""
    return next((codec for ending, codec in COMPRESSIONS.items() if path.lower().endswith(ending)), None)


def all_lines(location: Location, byte_start: int = 0, byte_end: int | None = None) -> Iterator[TextRecord]:
    """Yield the lines of a byte range, blank ones too."""
    with _open_at(location, byte_start) as stream:
        position = byte_start
        while (byte_end is None or position < byte_end) and (data := stream.readline()):
            start, position = position, position + len(data)
            yield TextRecord(start, position, data.removeprefix(_BYTE_ORDER_MARK) if start == 0 else data)


@contextmanager
def _open_at(location: Location, byte_start: int) -> Iterator[BinaryIO]:
    if (codec := compression_of(location.path)) is not None:
        with location.retrying(
            "opening", lambda: location.filesystem.open_input_stream(location.path, compression=codec)
        ) as decompressed:
            stream = io.BufferedReader(cast(Any, decompressed), _BUFFER_BYTES)
            left = byte_start
            while skipped := stream.read(min(_BUFFER_BYTES, left)):
                left -= len(skipped)
            yield cast(BinaryIO, stream)
    else:
        with location.open_file() as file:
            file.seek(byte_start)
            yield cast(BinaryIO, io.BufferedReader(cast(Any, file), _BUFFER_BYTES))
