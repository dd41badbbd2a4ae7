"""`dray doctor`: what this machine has, and what is promised on it.

Exit code 0, or 1 with what to do if Dray cannot run.
"""

import sys

from jobs.commands import with_options

main = with_options("doctor", __doc__, "jobs.machine.doctor:examine")

if __name__ == "__main__":
    sys.exit(main())
