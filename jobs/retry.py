"""`python -m jobs.retry --config FILE`: run the failed rows of a corpus again, and only those."""

import sys
from functools import partial

from jobs.commands import configured
from jobs.config.loading import load
from jobs.config.run import RetryConfig

# The exit code means what it does for jobs.generate.
main = configured("retry", partial(load, RetryConfig), "jobs.work.retrying:retry")

if __name__ == "__main__":
    sys.exit(main())
