"""The manifest of a run: its units on disk, written and read as a stream, never all in memory."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inputs.units import WorkUnit
from pipeline.schema import MANIFEST
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file

_UNITS_PER_ROW_GROUP = 10_000
_ROW_GROUPS_PER_PART = 10
_NO_WAY_ON = "restore it from a copy, or begin a new output directory; the rows in data/ are not touched"


@dataclass(frozen=True)
class ManifestSummary:
    """The totals of a manifest, which run.json keeps so that they are known without reading the plan.

    `token` is in the names of its parts, which tells them from the parts of another creation. `digests` are the sha256
    of each part, in order.
    """

    num_parts: int
    num_units: int
    num_rows: int
    estimated_tokens: int
    token: str
    digests: list[str]


def write_manifest(folder: Location, units: Iterable[WorkUnit], token: str, temporary: Location) -> ManifestSummary:
    """Write the units, in order, to `folder`/part-{token}-00000.parquet and on; return the summary."""
    to_write = iter(units)
    row_groups = iter(lambda: list(islice(to_write, _UNITS_PER_ROW_GROUP)), [])
    num_units = num_rows = estimated_tokens = 0
    digests: list[str] = []
    for part, first in enumerate(row_groups):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, MANIFEST) as writer:
            for group in chain([first], islice(row_groups, _ROW_GROUPS_PER_PART - 1)):
                writer.write_table(pa.Table.from_pylist([asdict(unit) for unit in group], schema=MANIFEST))
                num_units += len(group)
                num_rows += sum(unit.num_rows for unit in group)
                estimated_tokens += sum(unit.estimated_tokens for unit in group)
        content = sink.getvalue().to_pybytes()
        replace_file(_part(folder, token, part), content, temporary)
        digests.append(hashlib.sha256(content).hexdigest())
    return ManifestSummary(len(digests), num_units, num_rows, estimated_tokens, token, digests)


def read_manifest(folder: Location, manifest: ManifestSummary) -> Iterator[WorkUnit]:
    """Yield the units of a manifest, in order. Raises ValueError, naming the part, if one is gone or was changed."""
    for location, digest in zip(manifest_parts(folder, manifest), manifest.digests, strict=True):
        try:
            content = location.read_bytes()
        except FileNotFoundError as error:
            raise ValueError(f"{location.name}: this part of the manifest is gone; {_NO_WAY_ON}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(
                f"{location.name}: damaged: {len(content)} bytes that are not those of the plan (sha256 differs from "
                f"run.json); {_NO_WAY_ON}"
            )
        for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches(_UNITS_PER_ROW_GROUP):
            yield from (WorkUnit(**row) for row in batch.to_pylist())


def manifest_parts(folder: Location, manifest: ManifestSummary) -> list[Location]:
    """Return the files of a manifest, in order."""
    return [_part(folder, manifest.token, part) for part in range(manifest.num_parts)]


def _part(folder: Location, token: str, part: int) -> Location:
    return folder.child(f"part-{token}-{part:05d}.parquet")
