"""`python -m jobs.prove --config FILE`: prove that the drafter changes no token, with your models, machine, prompts."""

import sys

from jobs.commands import configured
from jobs.config.prove import ProveConfig

# The exit code: 0 if no token differs, 1 if one does where none may, 2 for a wrong configuration.
main = configured("prove", ProveConfig, "jobs.work.proof:prove")

if __name__ == "__main__":
    sys.exit(main())
