"""`python -m jobs.generate --config FILE`: generate a corpus, or what is missing of it."""

import sys

from jobs.commands import configured
from jobs.config.run import GenerateConfig

main = configured("generate", GenerateConfig, "jobs.work.generation:generate")

if __name__ == "__main__":
    sys.exit(main())
