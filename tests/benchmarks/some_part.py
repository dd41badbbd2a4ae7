"""A part of a check-up that does what its words say: `python -m tests.benchmarks.some_part MEASURED WORD...`"""

import os
import sys
import threading
from pathlib import Path


def main() -> None:
    measured, *words = sys.argv[1:]
    for word in words:
        verb, _, what = word.partition("=")
        match verb:
            case "say":
                sys.stdout.write(what + "\n")
                sys.stdout.flush()
            case "tell":
                with Path(what).open("a") as diary:
                    diary.write(".")
            case "pid":
                Path(what).write_text(str(os.getpid()))
            case "write":
                Path(measured).write_text('{"number": 1}')
            case "write-half":
                Path(measured).write_text('{"number":')
            case "fail":
                sys.exit(3)
            case "hang":
                threading.Event().wait()


if __name__ == "__main__":
    main()
