"""A job of task "score" over rows of a measurement, in processes of its own: how many rows a second it does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from benchmarks.scored_rows import CHOICES

_ROWS_A_UNIT = 64


class JobSpeed(NamedTuple):
    """Rows a second of a job."""

    steady: float  # from the first unit's commit to the last one's
    whole: float  # from the command's start to its end, with all that it loads


def run_score_job(rows: Seq[Seq[str]], target: str, folder: Path) -> JobSpeed:
    """Score rows as candidates of their prompts, or prompts alone, by one actor; the folder must be empty."""
    source, output = folder / "in.jsonl", folder / "out"
    has_choices = len(rows[0]) > 1
    with source.open("w") as file:
        for number, texts in enumerate(rows):
            row = {"id": str(number), "prompt": texts[0]}
            answers = {"prompt": texts[0].removesuffix(CHOICES[0]), "answers": list(CHOICES)} if has_choices else {}
            file.write(json.dumps({**row, **answers}) + "\n")
    flags = [f"--input.path={source}", "--input.id_column=id", f"--output.path={output}", f"--models.target={target}"]
    flags += ["--task=score", "--actors.max_actors=1", f"--run.rows_per_unit={_ROWS_A_UNIT}", "--run.progress=none"]
    flags += ["--score.candidates_column=answers"] if has_choices else []
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jobs.generate", *flags], check=True, capture_output=True, env=_environment())
    seconds = time.perf_counter() - started
    parts = sorted((path.stat().st_mtime, path) for path in output.glob("data/*.parquet"))
    assert len(parts) > 2, f"rows of at least three units of {_ROWS_A_UNIT} tell how fast it is once it runs"
    (first, _), (last, _) = parts[0], parts[-1]
    later = sum(pq.read_metadata(path).num_rows for _, path in parts[1:]) / len(rows[0])
    return JobSpeed(later / (last - first), len(rows) / seconds)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
