"""`dray generate FILE OUT --model MODEL`: generate a corpus, or what is missing of it."""

import sys

from jobs.commands import configured
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig

main = configured("generate", GenerateConfig, "jobs.work.generation:generate", load_run)

if __name__ == "__main__":
    sys.exit(main())
