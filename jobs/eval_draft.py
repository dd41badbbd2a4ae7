"""`python -m jobs.eval_draft --config FILE [--against DRAFT]`: how much of a draft a run would accept, by its texts."""

import sys
from collections.abc import Callable, Sequence

from jobs.config.eval import EvalConfig
from jobs.config.loading import load
from jobs.driver.exits import configured, program


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, 1 if the gate is not passed, or 2 for a wrong configuration, corpus or draft."""
    return configured(lambda given: load(EvalConfig, given, program("eval_draft")), arguments, _work)


def _work() -> Callable[[EvalConfig], int]:
    from jobs.work.evaluation import evaluate

    return evaluate


if __name__ == "__main__":
    sys.exit(main())
