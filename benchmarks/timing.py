"""Seconds of a piece of work, on a device that may still be busy with the one before."""

import time
from collections.abc import Callable

import torch


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Return the seconds of `work`, the mean if it is done several times in a row without waiting in between."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - started) / times


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
