"""Starting or joining Ray, quietly, and what device the run gets there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch

from actors.resources import settle_device
from jobs.config import RunConfig
from pipeline.dataset import ActorPool


def pick_device(config: RunConfig) -> tuple[str, ActorPool]:
    """The device and the pool with its GPUs. Joins the cluster if only that can tell what `auto` means."""
    if config.models.device == "auto" and _address(config):
        start_ray(config)
    num_gpus = ray.cluster_resources().get("GPU", 0.0) if ray.is_initialized() else float(torch.cuda.device_count())
    if config.models.device == "cuda" and _address(config):
        num_gpus = max(num_gpus, 1.0)  # the cluster's, not this machine's
    return settle_device(config.models.device, config.actor_pool(), num_gpus)


def start_ray(config: RunConfig) -> None:
    """Join the cluster that is named, or start a local one; doing it twice is harmless."""
    if ray.is_initialized():
        return
    # Both silence warnings of Ray 2.60 that a local run always prints and nobody can act on.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = _address(config)
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    with _without_stderr():
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


def _address(config: RunConfig) -> str | None:
    return config.run.ray_address or os.environ.get("RAY_ADDRESS")


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what native code writes to stderr: Ray's notice about the log level above. Exceptions pass."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
