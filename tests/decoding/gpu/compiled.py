"""Kernels compiled for GPUs that are not here: `python -m tests.decoding.gpu.compiled FILE` prints what they take.

Triton compiles without a GPU. NVIDIA's assembler and `cuobjdump`, which come with it, tell registers, spills and shared
memory. A launch is recorded where the kernel would be started, with the very arguments of the launcher; so a process
that records does not interpret.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

# Bytes of shared memory that one program may have (CUDA C++ Programming Guide, "Compute Capabilities").
SHARED_MEMORY = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.uint8: "*u8",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")


@dataclass(frozen=True)
class Launch:
    """A kernel and the arguments with which it would have been started."""

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    def compiled(self, capability: int) -> "Compiled":
        """Compile for GPUs of this compute capability (90 is 9.0), specialized as a launch would be."""
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        hints: dict[tuple[int, ...], Any] = {}
        for index, parameter in enumerate(self.kernel.params):
            value = self.arguments[parameter.name]
            if isinstance(value, torch.Tensor):
                signature[parameter.name] = _TYPES[value.dtype]
                hints[index,] = [["tt.divisibility", 16]]
            elif parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[index,] = "constexpr", value
            elif isinstance(value, float):
                signature[parameter.name] = "fp32"
            else:
                signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
                if value % 16 == 0:
                    hints[index,] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, hints)
        found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)
        return Compiled.of(found, capability)


@dataclass(frozen=True)
class Compiled:
    """What a program of a compiled kernel takes, and its instructions in PTX."""

    capability: int
    num_registers: int
    num_spilled_bytes: int
    num_shared_bytes: int
    ptx: str

    @classmethod
    def of(cls, found: Any, capability: int) -> "Compiled":
        ptx: str = found.asm["ptx"]
        target = re.search(r"\.target\s+(\w+)", ptx)
        assert target is not None
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "kernel.ptx"
            source.write_text(ptx)
            command = [
                get_ptxas(capability).path,
                "-v",
                f"--gpu-name={target[1]}",
                "--fmad=false",
                str(source),
                "-o",
                f"{folder}/cubin",
            ]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        registers = int(re.findall(r"Used (\d+) registers", said)[-1])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
        return cls(capability, registers, spilled, int(found.metadata.shared), ptx)

    @property
    def multiplies_with_tensor_cores(self) -> bool:
        return bool(re.search(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)", self.ptx))


@contextmanager
def recorded(*modules: Any) -> Iterator[list[Launch]]:
    """Record the launches of the modules' kernels in place of starting them."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            def launch(*args: Any, **kwargs: Any) -> None:
                options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
                names = [parameter.name for parameter in self._kernel.params]
                launches.append(Launch(self._kernel, dict(zip(names, args, strict=False)) | kwargs, options))

            return launch

    kept = [
        (module, name, kernel)
        for module in modules
        for name, kernel in vars(module).items()
        if isinstance(kernel, triton.JITFunction) and not name.startswith("_")
    ]
    try:
        for module, name, kernel in kept:
            setattr(module, name, Recorder(kernel))
        yield launches
    finally:
        for module, name, kernel in kept:
            setattr(module, name, kernel)
