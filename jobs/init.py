"""`dray init [RUN.yaml] [FILE] [OUT] [--model MODEL]`: write a configuration file to begin with, with comments."""

import sys

from jobs.commands import configured
from jobs.machine.starting_file import InitConfig, load_init

main = configured("init", InitConfig, "jobs.machine.starting_file:write", load_init)

if __name__ == "__main__":
    sys.exit(main())
