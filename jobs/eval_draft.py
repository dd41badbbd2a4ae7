"""`dray eval-draft --config FILE [--against DRAFT]`: how much of a draft a run would accept, by its texts."""

import sys

from jobs.commands import configured
from jobs.config.train import EvalConfig

# The exit code: 0, 1 if the gate is not passed, or 2 for a wrong configuration, corpus or draft.
main = configured("eval_draft", EvalConfig, "jobs.work.evaluation:evaluate")

if __name__ == "__main__":
    sys.exit(main())
