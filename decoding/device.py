"""Where tensors live: the one place that picks a device, and the one way host values get there."""

from typing import Any, Literal

import torch

Device = Literal["auto", "cpu", "cuda"]


def pick_device(device: Device) -> torch.device:
    """The device that was asked for, or a ValueError if this machine lacks it."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here; use device 'cpu' or 'auto'")
    use_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Host values (numbers, nested lists) as a tensor there, without waiting for what the device still has to do.

    `torch.tensor(values, device=...)` would wait for it. The copy is taken from the values before this returns.
    """
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    """As a person calls it: "cpu", or the name of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
