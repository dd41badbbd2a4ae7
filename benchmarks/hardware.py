"""What the run runs on: names, versions, and how fast memory is."""

import importlib.metadata
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmarks.timing import seconds_of

_COPY_BYTES = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}
_REPEATS = 5


def copy_bandwidth(device: torch.device, num_bytes: int | None = None) -> float:
    """Return bytes per second of a large torch copy; bytes read and bytes written are both counted."""
    num_bytes = num_bytes or _COPY_BYTES[device.type]
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    return 2 * num_bytes / _median_seconds(partial(target.copy_, source), device)


def read_bandwidth(device: torch.device, num_bytes: int | None = None) -> float:
    """Return bytes per second of a large matrix-vector product, which does little but read the matrix."""
    num_bytes = num_bytes or _COPY_BYTES[device.type]
    matrix = torch.ones(num_bytes // 4 // 4096, 4096, dtype=torch.float32, device=device)
    vector = torch.ones(4096, dtype=torch.float32, device=device)
    return matrix.numel() * 4 / _median_seconds(partial(torch.mv, matrix, vector), device)


def _median_seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    return median(seconds_of(work, device) for _ in range(_REPEATS))


def describe_machine(device: torch.device) -> dict[str, object]:
    """Return processor, threads and memory."""
    facts: dict[str, object] = {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers"):
        found[name] = importlib.metadata.version(name)
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
