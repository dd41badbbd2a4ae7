"""`python -m jobs.prove --config FILE`: prove that the drafter changes no token, with your models, machine, prompts."""

import sys
from collections.abc import Callable, Sequence

from jobs.config.loading import load
from jobs.config.prove import ProveConfig
from jobs.driver.exits import configured, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if no token differs, 1 if one does where none may, 2 for a wrong configuration."""
    return configured(lambda given: load(ProveConfig, given, program("prove")), arguments, _work)


def _work() -> Callable[[ProveConfig], int]:
    from jobs.work.proof import prove

    return prove


if __name__ == "__main__":
    sys.exit(main())
