"""Helpers of the command tests: write an input, make the command line, read what came out."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as ds

from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash

Found = TypeVar("Found")


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    """Write one line for each row, strings as they are and the rest as JSON, and return the path."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def prompts(count: int) -> list[dict[str, Any]]:
    """Return `count` good rows, some of them chats."""
    return [
        {"id": f"row-{i}", "kind": "abc"[i % 3], "prompt": "hello world " * (1 + i % 4)}
        if i % 3
        else {"id": f"row-{i}", "kind": "chat", "messages": [{"role": "user", "content": f"hello {i}"}]}
        for i in range(count)
    ]


def arguments(source: Path | str, output: Path | str, pair: tuple[str, str], *more: str) -> list[str]:
    """Return the command line of a small run."""
    target, draft = pair
    drafts = [] if any(flag.startswith("--models.draft=") for flag in more) else [f"--models.draft={draft}"]
    return [
        f"--input.path={source}",
        "--input.id_column=id",
        "--input.carry_columns=[kind]",
        "--input.prompts_are=text",
        f"--output.path={output}",
        f"--models.target={target}",
        *drafts,
        "--sampling.max_tokens=12",
        "--run.rows_per_unit=8",
        "--run.progress=none",
        *more,
    ]


def generations(output: Path) -> list[dict[str, Any]]:
    """Return the rows in data/, in order."""
    rows = ds.dataset(output / "data", format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["row_id"], row["sample"]))


def errors(output: Path) -> list[dict[str, Any]]:
    """Return the rows in errors/, in order."""
    rows = [row for part in sorted(output.glob("errors/*.parquet")) for row in ds.dataset(part).to_table().to_pylist()]
    return sorted(rows, key=lambda row: row["row_id"])


def problems(output: Path) -> list[str]:
    """Return the problems that verification finds."""
    return check_run(RunDirectory.open(str(output))).problems


def content(output: Path) -> str:
    """Return the content hash of all generations."""
    return content_hash(RunDirectory.open(str(output)))


def commits(output: Path) -> dict[str, tuple[int, int]]:
    """Return each part's inode and time of change, which are equal only if the part was not written again."""
    return {part.name: (part.stat().st_ino, part.stat().st_mtime_ns) for part in output.glob("data/*.parquet")}


def wait_until(condition: Callable[[], Found], seconds: float = 120.0, every_s: float = 0.02) -> Found:
    """Wait until the condition holds, and return what it found: another look may find something else."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(every_s)
    return found
