"""Recordings: work of a device that is recorded once and replayed, with all its small kernels started at once.

A recording reads and writes fixed addresses: what it reads is copied into tensors of its own before a replay.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from decoding.device import is_out_of_memory

_log = logging.getLogger(__name__)


class Recording(Protocol):
    """Work that was recorded."""

    output: torch.Tensor  # of the last replay

    def replay(self) -> None:
        """Do the work again; the output is overwritten."""


Recorder = Callable[[Callable[[], torch.Tensor]], Recording]  # records what has run before


def record_if_possible(record: Recorder, run: Callable[[], torch.Tensor], what: str) -> Recording | None:
    """Return a recording, or None where a driver or an operation refuses: slower, but correct; the log says so.

    Raises where memory ran out: the engine answers with fewer slots, and records anew.
    """
    try:
        return record(run)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        _log.warning("%s cannot be recorded here (%s): each starts its kernels one by one", what, error)
        return None


class CudaRecording:
    """A CUDA graph: a recorded run."""

    output: torch.Tensor

    def __init__(self, run: Callable[[], torch.Tensor], pool: Any) -> None:
        """Record `run`, which has run before; recordings with the same pool share their memory."""
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self.output = run()
        except RuntimeError:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream current
            raise

    def replay(self) -> None:
        """Do the work again; the output is overwritten."""
        self._graph.replay()


def cuda_recorder() -> Recorder:
    """Return a recorder of CUDA graphs that share their memory, since one runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    return lambda run: CudaRecording(run, pool)
