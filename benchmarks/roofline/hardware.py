"""What the run runs on: names, versions, and how fast memory is."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import CPU, median_seconds, write_json

_VECTORS = {  # by the flag of the kernel that tells of them, the widest first
    "amx_bf16": "AMX, AVX-512 with bfloat16",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512f": "AVX-512",
    "avx2": "AVX2 alone",
}
_COPY_BYTES = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}


def copy_bandwidth(device: torch.device) -> float:
    """Return bytes per second of a large torch copy; bytes read and bytes written are both counted."""
    source = torch.ones(_COPY_BYTES[device.type] // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / median_seconds(partial(target.copy_, source), device)


def read_bandwidth(device: torch.device) -> float:
    """Return bytes per second of a large matrix-vector product, which does little but read the matrix."""
    matrix = torch.ones(_COPY_BYTES[device.type] // 4 // 4096, 4096, dtype=torch.float32, device=device)
    vector = torch.ones(4096, dtype=torch.float32, device=device)
    return matrix.nbytes / median_seconds(partial(torch.mv, matrix, vector), device)


def describe_machine(device: torch.device = CPU) -> dict[str, object]:
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
    names = ("torch", "transformers")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def record(file: Path | None, **facts: Any) -> None:
    """Write what was measured to a file, if there is one, with the date, the machine and versions before it."""
    if file is not None:
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        write_json(file, {"date": date, "machine": describe_machine(), "versions": versions(), **facts})


def _processor() -> str:
    """Return the processor's name and its widest vectors: machines of one name may differ in them, and in speed."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    flags = set(facts.get("flags", "").split())
    widest = next((vectors for flag, vectors in _VECTORS.items() if flag in flags), "")
    return f"{name} ({widest})" if widest else name
