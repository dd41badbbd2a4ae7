"""`python -m checks.answers [--write]`: an answer of a real model, and how fast it wrote all of them, as README has it.

With `--write` the model answers the questions of `make demo-real`, in one thread and without a head: no drafter changes
a text. That writes examples/answer.json and the sentence in README.md. Without, it returns 1 if the sentence is not
what the file says. `make test-real` compares the answer with what the model writes. The time is the processor's, since
another program on the machine changes that little.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks.roofline.hardware import describe_machine
from checks import ROOT

ANSWER, README = ROOT / "examples/answer.json", ROOT / "README.md"
CONFIG = ROOT / "examples/configs/demo_real.yaml"
SHOWN = "What is the capital of Australia?"  # the question whose answer README shows
_PLACE = re.compile("(<!-- answer: written by python -m checks.answers --write -->).*?(<!-- end of answer -->)")


def main(arguments: Sequence[str]) -> int:
    """Write what a run shows, or compare README with what was written; return 1 if it differs, 2 for other words."""
    is_written = list(arguments) == ["--write"]
    if arguments and not is_written:
        print(f"expected --write or nothing, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if is_written:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "jobs",
                "generate",
                f"--config={CONFIG}",
                f"--output.path={folder}/answers",
            ]
            subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            facts = facts_of(Path(folder, "answers"), used.ru_utime + used.ru_stime)
        ANSWER.write_text(json.dumps(facts, indent=1) + "\n")
    if not ANSWER.exists():
        return 0  # nothing is said of what is not measured
    before = README.read_text()
    written = _PLACE.sub(lambda place: place[1] + sentence(json.loads(ANSWER.read_text())) + place[2], before)
    if is_written:
        README.write_text(written)
    elif written != before or not _PLACE.search(before):
        print(
            "README.md does not say what examples/answer.json says; python -m checks.answers --write writes both",
            file=sys.stderr,
        )
        return 1
    return 0


def facts_of(run: Path, cpu_seconds: float) -> dict[str, Any]:
    """Return what is said of a run over the questions: its answer to one of them, its size, its time, and where."""
    report, settings = (json.loads((run / f"{name}.json").read_text()) for name in ("report", "run"))
    rows = ds.dataset(run / "data", format="parquet").to_table(columns=["prompt", "text"]).to_pylist()
    (answer,) = (row["text"] for row in rows if SHOWN in row["prompt"])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine() | {"threads": 1},
        "dtype": settings["identity"]["dtype"],
        "num_answers": report["counts"]["num_generations"],
        "num_tokens": report["counts"]["num_output_tokens"],
        "cpu_seconds": round(cpu_seconds, 1),
        "question": SHOWN,
        "answer": answer,
    }


def sentence(facts: dict[str, Any]) -> str:
    """Return README's words for these facts."""
    speed = facts["num_tokens"] / facts["cpu_seconds"]
    return (
        f"SmolLM2 135M, a real chat model from PyPI, wrote {facts['num_answers']} answers, {facts['num_tokens']:,} "
        f"tokens, in {facts['cpu_seconds']:.0f} s of one core's time with its loading ({speed:.0f} tokens/s; "
        f"{facts['machine']['processor']}, {facts['dtype']}), such as: “{facts['question']}” "
        f"“{' '.join(facts['answer'].split())}”"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
