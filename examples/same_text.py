"""Compares the bundled prompts' rows of a run with those of `make demo`, token for token.

python -m examples.same_text out/demo-learn
"""

import argparse
import sys
from collections.abc import Sequence

import pyarrow.dataset as ds

from checks.figures import lines_of, read_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many rows are the same; return 1 if one is not."""
    parser = argparse.ArgumentParser(description="Compare a run with the demo.")
    parser.add_argument("run", help="run directory, over the bundled prompts first, with the demo's seed and sampling")
    run = parser.parse_args(arguments).run
    expected = {line["id"]: line["sha256"] for line in read_lines()}
    rows = ds.dataset(f"{run}/data", format="parquet").to_table(filter=ds.field("sample") == 0).to_pylist()
    found = {line["id"]: line["sha256"] for line in lines_of(rows)}
    same = sum(found.get(name) == digest for name, digest in expected.items())
    print(f"{same} of the {len(expected)} rows of make demo have the same tokens in {run}")
    return int(same < len(expected))


if __name__ == "__main__":
    sys.exit(main())
