"""The CPU kernels: compiled on first use by the machine's own C++ compiler and kept on disk.

Without a compiler torch's own operations do the same, slower. Compiling takes three seconds, once on each machine.
DRAY_KERNELS=off runs without the kernels. DRAY_KERNELS_MARCH names the processor to build for in the compiler's words
(default: `native`); `x86-64-v3` builds the kernels without AVX-512.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SOURCE = Path(__file__).with_name("cpu.cpp")
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
_FLAGS = ("-O3", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_HEAD_SIZES = (16, 32, 64, 80, 96, 128, 256)
_LANES = 16
_SECONDS = 120  # for the compiler
_POINTER = ctypes.c_void_p
LinearFunction = Callable[..., None]  # takes a Linear, lines x, their number, what is added to the result, the result
_log = logging.getLogger(__name__)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Declare fields of one kind, named in the order in which they lie in memory."""
    return [(name, kind) for name in names.split()]


class Forward(ctypes.Structure):
    """The data that all layers of a forward share; the fields are explained in attention.h."""

    _fields_ = [
        *_fields(ctypes.c_int64, "num_rows num_tokens num_kv_heads group head_size num_positions num_visible"),
        *_fields(_POINTER, "row_first slot write_position position turn cos sin"),
    ]


class LayerCache(ctypes.Structure):
    """One layer's keys and values, and the norms of its heads."""

    _fields_ = [*_fields(_POINTER, "keys values query_norm key_norm"), ("epsilon", ctypes.c_float)]


class Linear(ctypes.Structure):
    """A weight in the kernel's layout, with bias and gate; the fields are explained in linear.h."""

    _fields_ = [*_fields(_POINTER, "weight bias gate_weight gate_bias"), *_fields(ctypes.c_int64, "inputs outputs")]


class DecoderLayer(ctypes.Structure):
    """One whole layer; the fields are explained in decoder.h."""

    _fields_ = [
        *_fields(_POINTER, "attention_norm mlp_norm"),
        *_fields(ctypes.c_float, "attention_epsilon mlp_epsilon"),
        *_fields(Linear, "qkv out up down"),
        ("cache", LayerCache),
    ]


@dataclass(frozen=True)
class Kernels:
    """The functions of cpu.cpp for one dtype."""

    attention_function: "ctypes._CFuncPtr"  # type: ignore[name-defined]
    rms_norm_function: "ctypes._CFuncPtr"  # type: ignore[name-defined]
    layers_function: Callable[..., None] | None  # None without the products of `load_linear`

    def attention(self, forward: Forward, layer: LayerCache, qkv: torch.Tensor, out: torch.Tensor | None) -> None:
        """Rotate and store `qkv` [N, (Q + 2 H) * D], and write the attention's output to `out` [N, Q * D]."""
        self.attention_function(forward, layer, qkv.data_ptr(), None if out is None else out.data_ptr())

    def rms_norm(self, x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Compute `x / rms(x) * weight` of each row."""
        out_NE = torch.empty_like(x_NE)
        num_rows, size = x_NE.shape
        self.rms_norm_function(x_NE.data_ptr(), weight_E.data_ptr(), epsilon, num_rows, size, out_NE.data_ptr())
        return out_NE


def load(dtype: torch.dtype, head_size: int, hidden_size: int) -> Kernels | None:
    """Return the kernels for a network of these sizes on CPU; None if torch's own operations must do."""
    if dtype not in _DTYPES or head_size not in _HEAD_SIZES or hidden_size % _LANES:
        return None
    library = _library()
    if library is None:
        return None
    attention = library[f"dray_attention_{_DTYPES[dtype]}"]
    attention.argtypes = [ctypes.POINTER(Forward), ctypes.POINTER(LayerCache), _POINTER, _POINTER]
    rms_norm = library[f"dray_rms_norm_{_DTYPES[dtype]}"]
    rms_norm.argtypes = [_POINTER, _POINTER, ctypes.c_float, ctypes.c_int64, ctypes.c_int64, _POINTER]
    attention.restype = rms_norm.restype = None
    layers = getattr(library, f"dray_layers_{_DTYPES[dtype]}", None)
    if layers is not None:
        sizes = [ctypes.c_int64, ctypes.c_bool]
        layers.argtypes = [ctypes.POINTER(Forward), ctypes.POINTER(DecoderLayer), *sizes, _POINTER, _POINTER]
        layers.restype = None
    return Kernels(attention, rms_norm, layers)


def load_linear(dtype: torch.dtype) -> LinearFunction | None:
    """Return the matrix product of this dtype; None if the processor or the compiler cannot do it."""
    name = f"dray_linear_{_DTYPES[dtype]}"
    library = _library()
    if library is None or not hasattr(library, name):
        return None
    function: LinearFunction = library[name]
    function.argtypes = [ctypes.POINTER(Linear), _POINTER, ctypes.c_int64, _POINTER, _POINTER]  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


def linear_columns() -> int:
    """Return the outputs of a block in the layout of the weights that `load_linear`'s functions read."""
    library = _library()
    assert library is not None, "only a function of the library needs its layout"
    library.dray_linear_columns.restype = ctypes.c_int64
    return int(library.dray_linear_columns())


def linear_kind(dtype: torch.dtype) -> str:
    """Return the instructions that multiply in this dtype; products of different kinds are rounded differently.

    An empty text if none of our kernels multiplies.
    """
    function = getattr(_library(), f"dray_linear_kind_{_DTYPES.get(dtype)}", None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _library() -> ctypes.CDLL | None:
    return None if os.environ.get("DRAY_KERNELS", "on") == "off" else _built()


@cache
def _built() -> ctypes.CDLL | None:
    # GCC first: the source uses its vector extensions, which other compilers know in part.
    names = (os.environ.get("CXX"), "g++", "c++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        _log.info("no C++ compiler here: the CPU runs torch's own operations")
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace")[-500:]
        _log.warning("the CPU kernels could not be built (%s %s): the CPU runs torch's own operations", error, output)
        return None
    if _has_another_openmp(library):  # two thread pools that spin against each other are slower than none
        _log.warning("torch brings an OpenMP runtime other than the compiler's: the CPU runs torch's own operations")
        return None
    return library


def _compiled(compiler: str) -> Path:
    """Return the shared library, from disk if this source was compiled for this processor before."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout.decode(errors="replace")
    sources = (path.read_text() for path in (_SOURCE, *_HEADERS))
    flags = (*_FLAGS, f"-march={os.environ.get('DRAY_KERNELS_MARCH', 'native')}")
    what = "\0".join((*sources, " ".join(flags), version, _processor()))
    folder = Path(os.environ.get("DRAY_CACHE") or Path.home() / ".cache" / "dray")
    path = folder / f"cpu-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "kernels.so"
            subprocess.run(
                [compiler, *flags, str(_SOURCE), "-o", str(built)], check=True, capture_output=True, timeout=_SECONDS
            )
            built.replace(path)  # atomic: another process may compile now, too
    return path


def _processor() -> str:
    """Describe the processor for `-march=native`: one home folder may serve different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _has_another_openmp(library: ctypes.CDLL) -> bool:
    """Tell whether this library and torch run threads of different OpenMP runtimes; others may be in memory unused."""
    torchs = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        runtimes = {_home_of_openmp(library), _home_of_openmp(ctypes.CDLL(str(torchs)))}
    except OSError:
        return False
    return len(runtimes - {None}) > 1


def _home_of_openmp(library: ctypes.CDLL) -> str | None:
    """Return the file in memory whose OpenMP functions a library calls; None if it calls none."""
    if not hasattr(library, "omp_get_max_threads"):
        return None
    address = ctypes.cast(library.omp_get_max_threads, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, file = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return file
    return None
