"""A run as a table that is read when it is asked for."""

from __future__ import annotations

import os

import pyarrow.dataset as ds

from pipeline.run.directory import RunDirectory


def load(run: str | os.PathLike[str]) -> ds.Dataset:
    """Return the generations of a run as a `pyarrow.dataset.Dataset`: nothing is read before it is asked for.

    `run` is a run directory, local or a URI (s3://, gs://). The dataset has the parts that are committed now, in the
    order of the input, and no other file: no half-written one, and none that is not the run's. A flipped bit in a part
    is an error. Failed rows are in `errors/` of the run. Raises ValueError if there is no run.

        import duckdb

        corpus = dray.load("out/demo")
        corpus.to_table(columns=["row_id", "text"]).to_pandas()
        duckdb.sql("select finish_reason, avg(num_output_tokens) from corpus group by all").show()

    polars reads it by `polars.scan_pyarrow_dataset(corpus)`, and `datasets`, of a local run, by
    `datasets.Dataset.from_parquet(corpus.files)`.
    """
    directory = RunDirectory.open(os.fspath(run))
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=options)
    filesystem, num_units = directory.location.filesystem, directory.manifest.num_units
    parts = sorted(unit_id for unit_id in directory.committed_parts() if unit_id < num_units)
    fragments = [format_.make_fragment(directory.part_path(unit_id).path, filesystem) for unit_id in parts]
    return ds.FileSystemDataset(fragments, directory.generations_schema, format_, filesystem)
