"""`python -m jobs.retry --config FILE`: run the failed rows of a corpus again, and only those."""

import sys
from collections.abc import Callable, Sequence

from jobs.config.loading import load
from jobs.config.run import RetryConfig
from jobs.driver.exits import configured, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Retry, and return the exit code, which means what it does for jobs.generate."""
    return configured(lambda given: load(RetryConfig, given, program("retry")), arguments, _work)


def _work() -> Callable[[RetryConfig], int]:
    from jobs.work.retrying import retry

    return retry


if __name__ == "__main__":
    sys.exit(main())
