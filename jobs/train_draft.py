"""`dray train-draft --config FILE`: train a draft, or a head, on the texts of its target.

Interrupted or killed, the same command goes on from the last checkpoint. Ctrl-C or SIGTERM lets training write one.
"""

import sys

from jobs.commands import configured
from jobs.config.train import TrainConfig

# The exit code: 0 done, 1 failed, 2 wrong configuration, 3 stopped or interrupted.
main = configured("train_draft", TrainConfig, "jobs.work.training:train")

if __name__ == "__main__":
    sys.exit(main())
