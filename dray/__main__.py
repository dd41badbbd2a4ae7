"""`python -m dray COMMAND ...`: the same as `dray COMMAND ...`."""

import sys

from jobs.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
