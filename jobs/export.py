"""`python -m jobs.export OUTPUT FILE`: OpenAI batch output of a run, one JSON line for every input row."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipeline.batch_export import export_batch
from pipeline.run_directory import RunDirectory
from pipeline.text import TextCodec


def main(arguments: Sequence[str] | None = None) -> int:
    """0, 1 if the run is not complete, 2 if there is no run."""
    parser = argparse.ArgumentParser(prog="python -m jobs.export", description=__doc__)
    parser.add_argument("output", help="run directory, local or a URI")
    parser.add_argument("file", help="JSONL file to write, local or a URI")
    parser.add_argument("--model", help="model name to write into every line; the target's path unless given")
    options = parser.parse_args(arguments)
    try:
        run_directory = RunDirectory.open(options.output)
        models = run_directory.run["models"]
        codec = TextCodec.load(models["tokenizer"] or models["target"])
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        num_lines = export_batch(run_directory, options.file, options.model or models["target"], codec)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{num_lines} lines in {options.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
