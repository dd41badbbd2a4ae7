"""Adds the committed parts of a run to an Iceberg table, without copying them, with PyIceberg.

`python -m examples.recipes.iceberg RUN FOLDER` makes a catalog in FOLDER, or goes on with the one that is there. It may
be repeated while the run goes on: a part is added once. A part exists whole or not at all, so a reader of the table
never sees half of one.
"""

import sys
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from pipeline.run.directory import RunDirectory

TABLE = "corpora.generations"


def catalog_in(folder: Path) -> Catalog:
    """Return the catalog of a folder: a file of SQLite, and the table's metadata beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("local", uri=f"sqlite:///{folder.absolute()}/catalog.db", warehouse=f"file://{folder.absolute()}")


def add_parts(run: str, catalog: Catalog) -> tuple[Table, int]:
    """Add what the run has committed since the last time; return the table, and how many parts were new."""
    run_directory = RunDirectory.open(str(Path(run).absolute()) if "://" not in run else run)
    catalog.create_namespace_if_not_exists("corpora")
    table = catalog.create_table_if_not_exists(TABLE, schema=run_directory.generations_schema)
    known = set(table.inspect.files()["file_path"].to_pylist())
    parts = [run_directory.part_path(unit_id) for unit_id in run_directory.committed_unit_ids()]
    paths = [f"file://{part.path}" if part.is_local else part.name for part in parts]
    new = sorted(path for path in paths if path not in known)
    if new:
        table.add_files(new)
    return table, len(new)


if __name__ == "__main__":
    table, num_new = add_parts(sys.argv[1], catalog_in(Path(sys.argv[2])))
    print(f"{num_new} new parts; the table has {table.scan().count():,} generations")
