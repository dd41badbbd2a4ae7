"""`dray prove --config FILE`: prove with your models and prompts that drafts change no token."""

import sys

from jobs.commands import configured
from jobs.config.one_line import load_run
from jobs.config.prove import ProveConfig

# The exit code: 0 if no token differs, 1 if one does where none may, 2 for a wrong configuration.
main = configured("prove", ProveConfig, "jobs.work.proof:prove", load_run)

if __name__ == "__main__":
    sys.exit(main())
