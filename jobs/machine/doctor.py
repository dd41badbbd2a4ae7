"""The work of `dray doctor`: this machine in lines for a reader, each with what to do if something is not as it should.

The promise is not looked up but measured, on a tiny model that is computed as a real one is.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from jobs.driver.stopping import Exit
from jobs.names import WHOLE_WORDS

if TYPE_CHECKING:
    import torch

_PACKAGES = ("torch", "transformers", "ray", "pyarrow", "pydantic-settings", "huggingface-hub", "gguf", "vllm")
_OPTIONAL = ("vllm",)
_HUB_WITHIN_S = 3.0
_GIB = 2**30
_FEWEST_GIB = 2.0  # free, for the smallest of real models beside the packages


class CannotRun(Exception):
    """Dray cannot run here; the message says what to do."""


def examine(options: argparse.Namespace) -> Exit:
    """Print what is found, and return the exit code."""
    width = shutil.get_terminal_size().columns
    for part in (_versions, _processor, _gpus, _memory, _ray, _hub, _promise):
        try:
            for name, found in part():
                print(fill(f"{name + ':':13} {found}", width, subsequent_indent=14 * " ", **WHOLE_WORDS), flush=True)
        except (CannotRun, ImportError) as error:
            print(f"Dray cannot run here: {error}", file=sys.stderr)
            return Exit.FAILED
    print("Dray can run here: dray generate questions.jsonl out/ --model MODEL")
    return Exit.COMPLETE


def _versions() -> Iterator[tuple[str, str]]:
    found = dict[str, str]()
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    yield "dray", f"{version('dray')}, Python {platform.python_version()}"
    yield "packages", ", ".join(f"{name} {number}" for name, number in found.items())
    if missing := [name for name in _PACKAGES if name not in (*found, *_OPTIONAL)]:
        raise CannotRun(f"{', '.join(missing)} is missing; pip install {' '.join(missing)}")


def _processor() -> Iterator[tuple[str, str]]:
    import torch

    from decoding.fused.kernels import linear_kind

    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(": ")[2] for line in info if line.startswith("model name"))
    num_threads = torch.get_num_threads()
    yield "processor", f"{next(names, platform.machine())}; {num_threads} thread{'s' * (num_threads > 1)}"
    compiler = next((path for name in ("g++", "c++") if (path := shutil.which(os.environ.get("CXX") or name))), None)
    yield "compiler", compiler or "none; apt-get install g++ lets Dray build its kernels, which are faster"
    kinds = {linear_kind(dtype) for dtype in (torch.float32, torch.bfloat16)} - {""}
    yield "kernels", ", ".join(sorted(kinds)) or "none; torch's own operations do the work, more slowly"


def _gpus() -> Iterator[tuple[str, str]]:
    import torch

    devices = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    named = [f"{device.name} ({device.total_memory / _GIB:.0f} GiB)" for device in devices]
    built = "" if torch.version.cuda else ", and this torch is built for the CPU alone"
    yield "GPU", ", ".join(named) or f"none found{built}"


def _memory() -> Iterator[tuple[str, str]]:
    from actors.engines.footprint import free_memory

    free = free_memory("cpu") / _GIB
    advice = "; end other programs, or take a smaller model" if free < _FEWEST_GIB else ""
    yield "free memory", f"{free:.1f} GiB{advice}"
    cache = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface").expanduser()
    here = next(folder for folder in (cache, *cache.parents) if folder.exists())
    yield "free disk", f"{shutil.disk_usage(here).free / _GIB:.0f} GiB for models, in {cache} (HF_HOME)"
    if not os.access(here, os.W_OK):
        raise CannotRun(f"{here} cannot be written; set HF_HOME to a folder that can")


def _ray() -> Iterator[tuple[str, str]]:
    from jobs.driver.cluster import find_cluster

    try:
        address = find_cluster(None)
    except ConnectionError as error:
        yield "Ray", str(error)
        return
    yield "Ray", f"a cluster at {address}" if address else "none runs here; commands that need it start their own"


def _hub() -> Iterator[tuple[str, str]]:
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        with urllib.request.urlopen(address, timeout=_HUB_WITHIN_S):
            yield "hub", f"{address} answers"
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        yield "hub", f"{address} cannot be reached ({why}); name models by folders or .gguf files"


def _promise() -> Iterator[tuple[str, str]]:
    import torch

    yield "float32", "exact: token for token what the target alone writes"
    is_exact = _measured(torch.bfloat16)
    yield (
        "bfloat16",
        f"{'exact' if is_exact else 'not exact'} on this CPU for Llama, Mistral, Qwen 2 and Qwen 3 (measured)",
    )


def _measured(dtype: torch.dtype) -> bool:
    """Return whether a tiny Llama, computed as any model is, gives a token the same logits in any batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from decoding.network.invariance import is_invariant
    from decoding.network.language_model import LanguageModel

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_key_value_heads=2, **sizes)).to(dtype)
    model = LanguageModel(network, frozenset())
    model.speed_up()
    return model.is_batch_invariant and is_invariant(model)
