"""Forgeries of a finished run: each changes one thing, and all that is recorded of it where a forger can."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.counts import count_generations
from pipeline.run.commit import Receipt, engine_of, part_content, receipt_of
from pipeline.run.directory import RunDirectory, _digest
from pipeline.run.manifest import write_manifest
from pipeline.storage.parquet import table_of
from pipeline.text.codec import TextCodec

Rows = list[dict[str, Any]]
Change = Callable[[Rows], Rows | None]


def edit_rows(output: Path, change: Change) -> None:
    """Change the rows of the first part, in place or by others, with a footer that fits."""
    edit_part(sorted(output.glob("data/part-*.parquet"))[0], change)


def edit_part(part: Path, change: Change, num_more_errors: int = 0, **engine: Any) -> None:
    """Change the rows of a part, and what its footer says of the engine."""
    table = table_of(part.read_bytes())
    receipt = receipt_of(table.schema)
    rows = table.to_pylist()
    changed = change(rows)
    new = pa.Table.from_pylist(rows if changed is None else changed, schema=table.schema)
    counts = count_generations(new, receipt.counts.num_errors + num_more_errors)
    said = {**engine_of(table.schema), **engine}
    part.write_bytes(part_content(new, Receipt(receipt.unit_id, counts, receipt.attempt), said))


def edit_run(output: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change run.json, with a digest that fits."""
    path = output / "run.json"
    run = json.loads(path.read_text())
    run.pop("digest")
    change(run)
    path.write_text(json.dumps({**run, "digest": _digest(run)}))


def say(output: Path, **fields: Any) -> None:
    """Let run.json name other values of fields of the configuration ("sampling__temperature"), wherever they stand."""

    def change(run: dict[str, Any]) -> None:
        for name, value in fields.items():
            section, _, field = name.partition("__")
            run["settings"][section][field] = value
            if (section, field) == ("run", "seed"):
                run["identity"]["seed"] = value
            elif field in run["identity"].get(section, {}):
                run["identity"][section][field] = value

    edit_run(output, change)


def rewrite(row: dict[str, Any], token_ids: list[int], codec: TextCodec) -> None:
    """Give a row other tokens, with the text and the counts that belong to them."""
    row |= {"token_ids": token_ids, "text": codec.decode(token_ids), "num_output_tokens": len(token_ids)}
    row |= {"num_rounds": len(token_ids), "num_draft_tokens": 0, "num_accepted_tokens": 0, "accepted_per_position": []}
    row |= {"draft_rounds": None}


def fail(output: Path, part: Path, user_id: str, row_number: int) -> None:
    """Let a row have failed, one that stands in no part any more, beside others of its unit that did."""
    path = output / "errors" / part.name
    table = pq.read_table(path)
    rows = table.to_pylist()
    row_id = (rows[0]["row_id"] >> 32 << 32) + row_number - 8
    forged = {**rows[0], "row_id": row_id, "id": user_id, "row_number": row_number, "stage": "generate"}
    pq.write_table(pa.Table.from_pylist(sorted([*rows, forged], key=lambda row: row["row_id"]), table.schema), path)
    edit_part(part, lambda rows: rows, num_more_errors=1)


def leave_out_of_manifest(output: Path) -> None:
    """Let the manifest, and all else, not have the last unit."""
    run = RunDirectory.open(str(output))
    *units, last = run.units()
    for folder in ("data", "errors"):
        (output / folder / f"part-{last.unit_id:09d}.parquet").unlink(missing_ok=True)
    summary = write_manifest(run.location.child("manifest"), units, "f" * 16, run.temporary)
    edit_run(output, lambda said: said.update(manifest=vars(summary)))


def swap_in_manifest(output: Path) -> None:
    """Let the first two units, of as many rows, have each other's bytes of the input."""
    run = RunDirectory.open(str(output))
    first, second, *others = run.units()
    places = [{"byte_start": unit.byte_start, "byte_end": unit.byte_end} for unit in (first, second)]
    units = [replace(first, **places[1]), replace(second, **places[0]), *others]
    summary = write_manifest(run.location.child("manifest"), units, "f" * 16, run.temporary)
    edit_run(output, lambda said: said.update(manifest=vars(summary)))
