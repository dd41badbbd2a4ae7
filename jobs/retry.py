"""`dray retry FILE OUT --model MODEL`: run the failed rows of a corpus again, and only those."""

import sys

from jobs.commands import configured
from jobs.config.one_line import load_run
from jobs.config.run import RetryConfig

# The exit code means what it does for jobs.generate.
main = configured("retry", RetryConfig, "jobs.work.generation:retry", load_run)

if __name__ == "__main__":
    sys.exit(main())
