"""Runs a file of SQL with DuckDB, and prints what it finds as JSON lines: `python -m examples.recipes.sql FILE`."""

import json
import sys
from pathlib import Path

import duckdb


def main(path: str) -> None:
    """Run the statements of a file one after the other, and print a line for each row that they return."""
    connection = duckdb.connect()
    for statement in connection.extract_statements(Path(path).read_text(encoding="utf-8")):
        connection.execute(statement)
        names = [column[0] for column in connection.description or ()]
        if names != ["Count"]:  # of rows that a COPY wrote
            for row in connection.fetchall():
                print(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=float))


if __name__ == "__main__":
    main(sys.argv[1])
