"""`python -m checks.paths`: every file that a document names exists.

MkDocs checks links (`make docs`). This checks the paths between backticks, in documents that describe the repository as
it is, and the tests that the Makefile names. Decision records, the lab book and the changelog describe it as it was.
"""

import re
import sys
from collections.abc import Iterator

from checks import ROOT, print_violations, tracked_files

_HISTORY = ("CHANGELOG.md", "docs/adr/0", "docs/log.md", "benchmarks/results/")
_PATH = re.compile(
    r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|yaml|sh|svg|png|csv|jsonl)|(?:{})/(?:[\w-]+/)*)`".format(
        "actors|benchmarks|checks|decoding|dray|endpoint|examples|jobs|k8s|pipeline|tests|training"
    )
)

_FILE = re.compile(r"`(\w+\.py)`")
_TEST = re.compile(r"\btests/[\w/]+(?:\.\w+)?")


def main() -> int:
    """Print each path that a document names and that does not exist; return 1 if there is one, else 0."""
    documents = [name for name in tracked_files("*.md") if not name.startswith(_HISTORY)]
    found = [line for name in documents for line in missing(name, (ROOT / name).read_text())]
    tests = _TEST.findall((ROOT / "Makefile").read_text())
    found += [f"Makefile: there is no {path}" for path in tests if not (ROOT / path).exists()]
    return print_violations(found, f"all paths in {len(documents)} documents exist")


def missing(document: str, text: str) -> Iterator[str]:
    """Yield one `file:line: message` for each path between backticks that does not exist.

    A Python file without a folder, in a row of a table that begins with folders, is in one of them.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        paths = _PATH.findall(line)
        bases = (ROOT, (ROOT / document).parent, ROOT / "tests", ROOT / "k8s")
        absent = [path for path in paths if not any((base / path).exists() for base in bases)]
        rooms = [ROOT / path for path in paths if path.endswith("/")] if line.startswith("|") else []
        if rooms:
            absent += [name for name in _FILE.findall(line) if not any((room / name).exists() for room in rooms)]
        yield from (f"{document}:{number}: there is no {path}" for path in absent)


if __name__ == "__main__":
    sys.exit(main())
