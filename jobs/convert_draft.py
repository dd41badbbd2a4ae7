"""`dray convert-draft SRC OUT --target T`: write a draft head (EAGLE-3, ...) in another format.

--format speculators  the format of vllm-project/speculators, which
                      `vllm serve OUT` reads
--format eagle        the format of the authors of EAGLE-3, DFlash and DSpark,
                      which SGLang reads

Weights are copied as they are; names and config.json alone change, and the target's weights are not read. The table
says what was decided, and which defaults were taken where SRC is silent. A head whose layer ids are wrong drafts in
vain without any error: say with --layer-ids-are what they mean where SRC does not.
"""

import sys

from jobs.commands import argument, with_options

main = with_options(
    "convert_draft",
    __doc__,
    "jobs.work.conversion:convert",
    argument("source", metavar="SRC", help="folder or hub name of the head"),
    argument("output", metavar="OUT", help="new folder"),
    argument(
        "--target", required=True, metavar="T", help="folder or hub name of the target; its config.json alone is read"
    ),
    argument("--format", required=True, choices=["speculators", "eagle"], help="format to write"),
    argument(
        "--layer-ids", type=int, nargs="+", metavar="ID", help="layers of the target that the head reads, in its order"
    ),
    argument(
        "--layer-ids-are", choices=["inputs", "outputs"], help="whether the head reads what enters or what leaves them"
    ),
)

if __name__ == "__main__":
    sys.exit(main())
