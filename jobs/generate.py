"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

import sys
from collections.abc import Callable, Sequence

from jobs.config.generate import GenerateConfig
from jobs.config.loading import load
from jobs.driver.exits import configured, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate, and return the exit code."""
    return configured(lambda given: load(GenerateConfig, given, program("generate")), arguments, _work)


def _work() -> Callable[[GenerateConfig], int]:
    from jobs.work.generation import generate

    return generate


if __name__ == "__main__":
    sys.exit(main())
