"""Kernels compiled for GPUs that are not here.

Triton compiles without a GPU. NVIDIA's `cuobjdump`, which comes with it, tells what the program that a GPU would run
takes. A launch is recorded where the kernel would be started, with the very arguments of the launcher; so a process
that records does not interpret.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.roofline.multiprocessor import MULTIPROCESSORS

# One kind of GPU in `make test`, and each in `make gpu-miniature`.
KINDS = (80, 90, 100, 120)
CAPABILITIES = [each if each == 90 else pytest.param(each, marks=pytest.mark.slow) for each in KINDS]
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
        source = ASTSource(self.kernel, *self._specialization())
        found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)
        return Compiled.of(found, capability)

    @property
    def program(self) -> tuple[str, str]:
        """What launches that run one and the same program have in common."""
        return self.kernel.__name__, repr((self._specialization(), self.options))

    def _specialization(self) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], Any]]:
        """Return types by name, the values that the compiler knows by place, and what it knows of others."""
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        hints: dict[tuple[int, ...], Any] = {}
        for index, parameter in enumerate(self.kernel.params):
            value, is_any = self.arguments[parameter.name], parameter.do_not_specialize
            if isinstance(value, torch.Tensor):
                signature[parameter.name] = _TYPES[value.dtype]
                hints[index,] = [["tt.divisibility", 16]]
            elif parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not is_any):
                signature[parameter.name], constants[index,] = "constexpr", value
            elif isinstance(value, float):
                signature[parameter.name] = "fp32"
            else:
                signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
                if value % 16 == 0 and not is_any:
                    hints[index,] = [["tt.divisibility", 16]]
        return signature, constants, hints


@dataclass(frozen=True)
class Compiled:
    """What a program of a compiled kernel takes, and its instructions in PTX."""

    capability: int
    num_threads: int
    num_registers: int  # of a thread
    num_spilled_bytes: int
    num_shared_bytes: int
    ptx: str
    reduced_layouts: frozenset[str]  # how the numbers of sums within a program lie in its threads

    @classmethod
    def of(cls, found: Any, capability: int) -> "Compiled":
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(found.asm["cubin"])
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # Our kernels call nothing and index no arrays of their own, so the stack has what the registers cannot take.
        taken = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
        num_spilled_bytes = taken["STACK"] + taken["LOCAL"]
        num_threads, num_shared_bytes = 32 * found.metadata.num_warps, int(found.metadata.shared)
        tiles = found.asm["ttgir"]
        layouts = dict(re.findall(r"(#\w+) = (#ttg\S.*)", tiles))
        reduced = re.findall(r'"tt\.reduce".*?\}\) : \(tensor<[^>]*?(#\w+)>', tiles, re.DOTALL)
        used = frozenset(layouts[name] for name in reduced)
        return cls(capability, num_threads, taken["REG"], num_spilled_bytes, num_shared_bytes, found.asm["ptx"], used)

    @property
    def num_at_once(self) -> int:
        """The programs that one multiprocessor runs at the same time."""
        here = MULTIPROCESSORS[self.capability]
        return here.num_at_once(self.num_threads, self.num_shared_bytes, self.num_registers)

    @property
    def tensor_core_instructions(self) -> set[str]:
        """The kinds of instructions that multiply tiles, with their shapes and types."""
        return set(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\.[\w.:]+", self.ptx))


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
