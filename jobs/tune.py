"""`dray tune FILE OUT --model MODEL`: find the drafter, slots and threads that are fastest here."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from jobs.commands import configured
from jobs.config.loading import config_file
from jobs.config.one_line import load_run
from jobs.config.tune import TuneConfig


def read(kind: type[TuneConfig], arguments: Sequence[str], prog: str) -> TuneConfig:
    """Return the configuration, which knows the file that it comes from. Raises ValueError as `load_run` does."""
    return replace(load_run(kind, arguments, prog), config_file=config_file(arguments))


# The exit code: 0 done, 1 if a text differs where none may, 2 wrong configuration.
main = configured("tune", TuneConfig, "jobs.work.tuning.command:tune", read)

if __name__ == "__main__":
    sys.exit(main())
