"""`python -m benchmarks.gpu_check.environment --json FILE`: the GPU, its driver, and versions."""

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import write_json
from benchmarks.roofline.hardware import copy_bandwidth, describe_machine, read_bandwidth

_PACKAGES = ("torch", "triton", "transformers", "numpy", "pytest", "ray")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what is there, and print it; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.environment")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    facts = describe()
    write_json(given.json, facts)
    for name, value in facts.items():
        print(f"{name}: {value}")
    return 0


def describe() -> dict[str, Any]:
    """Return names, versions and, of a GPU, how fast its memory is."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "machine": describe_machine(device),
        "nvidia_smi": _nvidia_smi(),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        facts["gpu"] = {
            "name": torch.cuda.get_device_name(device),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "memory_gib": round(total / 2**30, 1),
            "free_gib": round(free / 2**30, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "copy_gb_s": round(copy_bandwidth(device) / 1e9),
            "read_gb_s": round(read_bandwidth(device) / 1e9),
        }
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvidia_smi() -> str | None:
    """Return what nvidia-smi tells of driver, memory, clocks and power; None where there is none, or it fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    fields = "name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit"
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return told.stdout.strip() if told.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
