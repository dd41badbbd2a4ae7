"""`python -m jobs.retry --config FILE`: run the failed rows of a corpus again, and only those."""

import sys

from jobs.commands import configured
from jobs.config.run import RetryConfig

# The exit code means what it does for jobs.generate.
main = configured("retry", RetryConfig, "jobs.work.generation:retry")

if __name__ == "__main__":
    sys.exit(main())
