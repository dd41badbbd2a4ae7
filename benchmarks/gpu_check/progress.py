"""What a part has shown, read from the file that its command writes at its end, or from its log if it was stopped."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# Lines of `python -m benchmarks.decoder`: "repeat 1/2: plain@64 7,312.0 tokens/s".
_SPEED = re.compile(r"^repeat \d+/\d+: (\S+) ([\d,.]+) tokens/s$", re.MULTILINE)
# Lines of `pytest -vv`: "collected 9 items / 2 deselected / 7 selected", and
# "tests/gpu/test_text.py::test_name[...] PASSED [ 12%]"; a reason may follow SKIPPED.
_TEST = re.compile(r"^(tests/\S+?::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
_COLLECTED = re.compile(r"\bcollected (\d+) items?(?: / (\d+) deselected)?")


def facts_so_far(measured: Path, log: Path) -> Mapping[str, Any] | None:
    """Return what a command wrote; of one that was stopped, the speeds that its log tells; None if there is nothing."""
    with suppress(FileNotFoundError, json.JSONDecodeError):  # it may have been stopped while it wrote
        facts: dict[str, Any] = json.loads(measured.read_text())
        return facts
    speeds = {label: float(speed.replace(",", "")) for label, speed in _SPEED.findall(_text(log))}
    return {"speeds_so_far": speeds} if speeds else None


def counts_so_far(measured: Path, log: Path) -> Mapping[str, Any] | None:
    """Return how many tests passed and were skipped, which failed, and how many there are; None without any."""
    text = _text(log)
    collected = _COLLECTED.search(text)
    if collected is None:
        return None
    ended = _TEST.findall(text)
    return {
        "collected": int(collected[1]) - int(collected[2] or 0),
        "passed": sum(outcome == "PASSED" for _, outcome in ended),
        "skipped": sum(outcome == "SKIPPED" for _, outcome in ended),
        "failed": [name for name, outcome in ended if outcome in ("FAILED", "ERROR", "XPASS")],
    }


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = [line.strip() for line in _text(log).splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
