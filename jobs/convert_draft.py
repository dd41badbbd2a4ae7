"""`python -m jobs.convert_draft SRC OUT --target T`: a draft head (EAGLE-3, DFlash, ...) in another format.

--format speculators  the format of vllm-project/speculators, which `vllm serve OUT` reads
--format eagle        the format of the authors of EAGLE-3, DFlash and DSpark, which SGLang reads

Weights are copied as they are; names and config.json alone change, and the target's weights are not read. The table
says what was decided, and which defaults were taken where SRC is silent. A head whose layer ids are wrong drafts in
vain without any error: say with --layer-ids-are what they mean where SRC does not.
"""

import argparse
import sys
from collections.abc import Sequence

from jobs.driver.exits import program


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the head is written, 1 if it cannot be written, 2 if it cannot be read or does not fit the target."""
    options = _parser().parse_args(arguments)
    from jobs.work.conversion import convert  # here, since it needs torch, which --help does not

    return convert(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program("convert_draft"), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("source", metavar="SRC", help="folder or hub name of the head")
    add("output", metavar="OUT", help="new folder")
    add("--target", required=True, metavar="T", help="folder or hub name of the target; its config.json alone is read")
    add("--format", required=True, choices=["speculators", "eagle"], help="format to write")
    add("--layer-ids", type=int, nargs="+", metavar="ID", help="layers of the target that the head reads, in its order")
    add("--layer-ids-are", choices=["inputs", "outputs"], help="whether the head reads what enters or what leaves them")
    return parser


if __name__ == "__main__":
    sys.exit(main())
