"""The library of CPU kernels: compiled on first use by the machine's own C++ compiler and kept on disk.

Without a compiler torch's own operations do the same, slower. Compiling takes some seconds, once on each machine.
DRAY_KERNELS=off runs without the kernels. DRAY_KERNELS_MARCH names the processor to build for in the compiler's words
(default: `native`); `x86-64-v3` builds the kernels without AVX-512. DRAY_KERNELS_TILES=off multiplies bfloat16 without
the tiles of AMX; `emulated` multiplies by tiles that are written out in C, slowly, on any processor with AVX2.
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
from functools import cache
from pathlib import Path
from typing import Any

import torch

_SOURCE = Path(__file__).parent / "kernels" / "cpu.cpp"
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
_FLAGS = ("-O3", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
_SECONDS = 300  # for the compiler, on a machine that is busy
_log = logging.getLogger(__name__)


def library() -> ctypes.CDLL | None:
    """Return the library, compiled if it is not there yet; None if torch's own operations must do."""
    return None if os.environ.get("DRAY_KERNELS", "on") == "off" else _built()


def cache_folder() -> Path:
    """Return the folder that keeps what is made for this machine once."""
    return Path(os.environ.get("DRAY_CACHE") or Path.home() / ".cache" / "dray")


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """Return a function of the library, which takes and returns these types of ctypes; None if there is none."""
    built = library()
    return None if built is None else _typed(built, name, result, arguments)


@cache
def _typed(built: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
    found: Any = getattr(built, name, None)
    if found is not None:
        found.restype, found.argtypes = result, arguments
    return found  # type: ignore[no-any-return]


@cache
def _built() -> ctypes.CDLL | None:
    # GCC first: the source uses its vector extensions, which other compilers know in part.
    names = (os.environ.get("CXX"), "g++", "c++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        _log.info("no C++ compiler here: the CPU runs torch's own operations")
        return None
    try:
        built = ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or b"").decode(errors="replace")[-500:]
        _log.warning("the CPU kernels could not be built (%s %s): the CPU runs torch's own operations", error, output)
        return None
    if _has_another_openmp(built):  # two thread pools that spin against each other are slower than none
        _log.warning("torch brings an OpenMP runtime other than the compiler's: the CPU runs torch's own operations")
        return None
    return built


def _compiled(compiler: str) -> Path:
    """Return the shared library, from disk if this source was compiled for this processor before."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout.decode(errors="replace")
    sources = (path.read_text() for path in (_SOURCE, *_HEADERS))
    flags = (*_FLAGS, f"-march={os.environ.get('DRAY_KERNELS_MARCH', 'native')}")
    what = "\0".join((*sources, " ".join(flags), version, _processor()))
    folder = cache_folder()
    path = folder / f"cpu-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "kernels.so"
            subprocess.run(
                [compiler, *flags, str(_SOURCE), "-o", str(made)], check=True, capture_output=True, timeout=_SECONDS
            )
            made.replace(path)  # atomic: another process may compile now, too
    return path


def _processor() -> str:
    """Describe the processor for `-march=native`: one home folder may serve different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _has_another_openmp(built: ctypes.CDLL) -> bool:
    """Tell whether this library and torch run threads of different OpenMP runtimes; others may be in memory unused."""
    torchs = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        runtimes = {_home_of_openmp(built), _home_of_openmp(ctypes.CDLL(str(torchs)))}
    except OSError:
        return False
    return len(runtimes - {None}) > 1


def _home_of_openmp(built: ctypes.CDLL) -> str | None:
    """Return the file in memory whose OpenMP functions a library calls; None if it calls none."""
    if not hasattr(built, "omp_get_max_threads"):
        return None
    address = ctypes.cast(built.omp_get_max_threads, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, file = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return file
    return None
