"""What the commands on a run with many parts cost: seconds, seconds of CPU, and memory, of all of their processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from select import select

from benchmarks.scale.made_run import arguments_of, make_run
from benchmarks.scale.store import CREDENTIALS, late_store

_LOOK_EVERY_S = 0.5
_NUM_LEFT = 8  # units that a resumed run has yet to do
# The real command, without its actors: it ends when it has the first unit to hand out, as if it had been stopped.
_RESUME = (
    "import sys; from jobs.work import generation; from jobs.generate import main; "
    "generation.execute = lambda units, *_, **__: iter(() if next(iter(units)) else ()); sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Cost:
    """What a command took. `megabytes` is the most that its processes held at a time, shared pages counted once."""

    command: str
    num_units: int
    num_rows: int
    delay_ms: float | None  # of each request to a store; None: on a disk
    seconds: float
    cpu_seconds: float
    megabytes: float
    load: float  # processes that wanted a CPU before it began, the mean of a minute


def measure_commands(folder: Path, num_units: int, rows_per_unit: int, delays_ms: list[float]) -> Iterator[Cost]:
    """Make a run of this many parts, and measure each command on a disk, and with each delay on a store."""
    run = make_run(folder, num_units, rows_per_unit).location.path
    size = num_units, num_units * rows_per_unit
    for delay_ms in [None, *delays_ms]:
        missing = {name: name.read_bytes() for name in sorted(Path(run, "data").iterdir())[-_NUM_LEFT:]}
        with nullcontext(None) if delay_ms is None else late_store(folder, delay_ms) as query:
            place = run if query is None else f"s3://bucket/run?{query}"
            page = str(folder / "page.html")
            for name, expected, arguments in (
                ("status", 4, ["-m", "jobs.status", place]),
                ("report", 0, ["-m", "jobs.report", place]),
                ("report --html", 0, ["-m", "jobs.report", place, "--html", page]),
                ("verify", 0, ["-m", "jobs.verify", place]),
                ("resume", 3, ["-c", _RESUME, *arguments_of(folder, place, rows_per_unit)]),
            ):
                if name == "report --html" and delay_ms is not None:
                    continue  # it asks a store for what the report and the check ask
                for part in missing if name == "resume" else ():
                    part.unlink()
                load = os.getloadavg()[0]
                yield Cost(name, *size, delay_ms, *_cost_of([sys.executable, *arguments], expected), load)
        for part, content in missing.items():
            part.write_bytes(content)


def _cost_of(command: list[str], expected: int) -> tuple[float, float, float]:
    """Return the seconds, the seconds of CPU and the megabytes that a command takes.

    Raises ValueError if it ends with another exit code than is expected.
    """
    started, most = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **CREDENTIALS})
    with open(os.pidfd_open(process.pid)) as end:
        while not select([end], [], [], _LOOK_EVERY_S)[0]:
            most = max(most, _megabytes(process.pid))
    seconds, (_, status, used) = time.perf_counter() - started, os.wait4(process.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) != expected:
        raise ValueError(f"{' '.join(command)} ended with exit code {code}, not {expected}")
    return seconds, used.ru_utime + used.ru_stime, most or used.ru_maxrss / 1024


def _megabytes(pid: int) -> float:
    """Return what a process and its children hold now; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return 0.0
    own = next((float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)
    return own + sum(_megabytes(int(child)) for child in children)
