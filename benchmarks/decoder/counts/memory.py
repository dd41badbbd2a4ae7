"""Measure one configuration's peak memory in a process of its own: `python -m benchmarks.decoder.counts.memory` (JSON).

On Linux a process's highest resident size can be reset, so loading and generating are told apart. On CUDA it is torch's
own count of allocated bytes.
"""

import json
import pickle
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.decoder.corpus import Corpus, generate
from decoding import Engine, EngineOptions
from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.network.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a run in a process of its own."""

    peak: int  # most at any time while generating, above what the process had before it loaded models
    peak_with_loading: int
    weights: int
    kv_slots: int  # reserved: slots x positions of both caches

    @property
    def ratio(self) -> float:
        """Peak over what must be there."""
        return self.peak / (self.weights + self.kv_slots)


def measure_memory(
    corpus: Corpus, num_rows: int, pair: Path, device: Device, dtype: DType, options: EngineOptions
) -> Memory:
    """Return the bytes that a fresh process needs for this run, above those of its imports."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.decoder.counts.memory"],
        input=pickle.dumps((torch.get_num_threads(), corpus, num_rows, pair, device, dtype, options)),
        capture_output=True,
        check=False,
    )
    if found.returncode:
        raise RuntimeError(f"measuring memory failed: {found.stderr.decode().strip().splitlines()[-1:]}")
    return Memory(**json.loads(found.stdout.splitlines()[-1]))


def main() -> None:
    """Read what to do from standard input, pickled, do it, print the Memory."""
    threads, corpus, num_rows, pair, device, dtype, options = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    cuda = device == "cuda"
    before = _current(cuda)
    engine = Engine.load(str(pair / "target"), str(pair / "draft"), options, device=device, dtype=dtype)
    loaded = _peak(cuda)
    _reset_peak(cuda)
    generate(engine, corpus.sequences(num_rows))
    models = _models_in(engine)
    peak = _peak(cuda)
    memory = Memory(
        peak=peak - before,
        peak_with_loading=max(peak, loaded) - before,
        weights=sum(model.num_weight_bytes for model in models),
        kv_slots=sum(model.cache.num_bytes for model in models if model.cache),
    )
    print(json.dumps(asdict(memory)))


def _models_in(part: object) -> list[LanguageModel]:
    """Return the models of an engine, of its drafter and of the drafters inside that one, each once."""
    found: dict[int, LanguageModel] = {}
    for value in vars(part).values():
        if isinstance(value, LanguageModel):
            found[id(value)] = value
        elif hasattr(value, "__dict__") and type(value).__module__.startswith("decoding."):
            found |= {id(model): model for model in _models_in(value)}
    return list(found.values())


def _current(cuda: bool) -> int:
    return torch.cuda.memory_allocated() if cuda else _status("VmRSS")


def _peak(cuda: bool) -> int:
    return torch.cuda.max_memory_allocated() if cuda else _status("VmHWM")


def _reset_peak(cuda: bool) -> None:
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the highest resident size


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}; peak memory can only be measured on Linux")


if __name__ == "__main__":
    main()
