"""GPUS: what the vendor states about each GPU, by the name that `--gpu` takes.

From NVIDIA's data sheets of each product (nvidia.com/en-us/data-center/ h100, h200, a100, l4, hgx; read 2026-11).
Products in bfloat16 are those of dense matrices: half of a figure that is stated "with sparsity". A gigabyte is 10^9
bytes; the driver shows some per cent more than that, which is about what a process needs besides weights and cache.
Multiprocessors are those of the SXM5 card in NVIDIA's white paper on the H100, whose processor the H200 has, too.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """The limits of one GPU."""

    name: str
    device_name: str  # by which torch.cuda.get_device_name tells it from its slower or smaller variants
    bandwidth: float  # bytes of memory a second
    flops: float  # operations a second of bfloat16 products, added up in float32
    memory: float  # bytes
    num_multiprocessors: int = 0  # 0: what our kernels take there is not predicted


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100", "NVIDIA H100 80GB HBM3", 3.35e12, 989e12, 80e9, 132),  # SXM: 3.35 TB/s, 1,979 TFLOPS with sparsity
        Gpu("h200", "NVIDIA H200", 4.8e12, 989e12, 141e9, 132),  # SXM: 4.8 TB/s, 1,979 TFLOPS with sparsity
        Gpu("a100", "NVIDIA A100-SXM4-80GB", 2.039e12, 312e12, 80e9),  # SXM, 80 GB: 2,039 GB/s, 312 TFLOPS dense
        Gpu("l4", "NVIDIA L4", 0.3e12, 121e12, 24e9),  # 300 GB/s, 242 TFLOPS with sparsity
        Gpu("b200", "NVIDIA B200", 8e12, 2250e12, 180e9),  # one of HGX's eight: 8 TB/s, 4.5 PFLOPS with sparsity
    )
}


def gpu_of(device_name: str) -> Gpu | None:
    """Return the GPU that torch calls so; None if its limits are not known here."""
    return next((gpu for gpu in GPUS.values() if gpu.device_name == device_name), None)
