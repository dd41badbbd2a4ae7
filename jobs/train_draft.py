"""`python -m jobs.train_draft --config FILE`: train a draft, or a head, on the texts that its target has written.

Interrupted or killed, the same command goes on from the last checkpoint. Ctrl-C or SIGTERM lets training write one.
"""

import sys
from collections.abc import Callable, Sequence

from jobs.config.loading import load
from jobs.config.train import TrainConfig
from jobs.driver.exits import configured, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code: 0 done, 1 failed, 2 wrong configuration, 3 stopped or interrupted."""
    return configured(lambda given: load(TrainConfig, given, program("train_draft")), arguments, _work)


def _work() -> Callable[[TrainConfig], int]:
    from jobs.work.training import train

    return train


if __name__ == "__main__":
    sys.exit(main())
