"""Starting or joining Ray, quietly, and what device the run gets there."""

from __future__ import annotations

import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import ray
import torch

from actors.resources import settle_device, shortage
from actors.settings import GeneratorSettings
from actors.stages.places import give_back_orphans
from jobs.driver.stopping import keeping_sigterm
from pipeline.logs import Event
from pipeline.streaming.actor_resources import ActorResources
from pipeline.streaming.pool import ActorPool

_Actors = TypeVar("_Actors", bound=ActorResources)
_LONGEST_PATIENCE_S = 600.0
_log = logging.getLogger(__name__)


def pick_device(settings: GeneratorSettings, actors: _Actors, ray_address: str | None) -> tuple[str, _Actors]:
    """Return the device, and the actors with the GPUs that they hold there.

    Joins the cluster if only that can tell what `auto` means.
    """
    device, is_remote = settings.models.device, bool(_address(ray_address))
    if device == "auto" and is_remote:
        start_ray(ray_address)
    num_gpus = ray.cluster_resources().get("GPU", 0.0) if ray.is_initialized() else float(torch.cuda.device_count())
    if device == "cuda" and is_remote:
        num_gpus = max(num_gpus, 1.0)  # the cluster's, not this machine's
    if settings.stages.is_apart and device != "cpu":  # the stages take the GPUs; the actor that drives them takes none
        has_gpus = num_gpus + settings.stages.num_gpus + actors.num_gpus > 0
        return ("cuda" if has_gpus or device == "cuda" else "cpu"), actors
    return settle_device(device, actors, num_gpus)


def start_ray(ray_address: str | None) -> None:
    """Join the cluster at this address or at RAY_ADDRESS, or start a local one; doing it twice is harmless."""
    address = _address(ray_address)
    if ray.is_initialized():
        return
    # Both silence warnings of Ray 2.60 that a local run always prints and nobody can act on.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    with _without_stderr(), keeping_sigterm():
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


class _Watch(ABC):
    """A thread that looks after something while it is entered."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Watch no more."""
        self._ended.set()

    @abstractmethod
    def _watch(self) -> None:
        """Look, now and then, until `_ended` is set."""


class ShortageWatch(_Watch):
    """While it is entered: says what the cluster lacks for the pool when actors fail to appear.

    First after some seconds, then now and then, until as many are ready as were asked for at once.
    """

    def __init__(
        self, pool: ActorPool, ledger: Any, settings: GeneratorSettings | None = None, patience_s: float = 20.0
    ) -> None:
        """`ledger` is the run's Ledger, an actor, which knows who is ready; `settings` say what each actor needs."""
        self._pool, self._ledger, self._settings, self._patience_s = pool, ledger, settings, patience_s
        super().__init__("shortage-watch")

    def _watch(self) -> None:
        patience_s = self._patience_s
        while not self._ended.wait(patience_s):
            try:
                num_ready = ray.get(self._ledger.num_joined.remote())
                lack = shortage(self._pool, ray.nodes(), self._settings)
            except Exception:  # noqa: BLE001 - the run has just ended, and Ray with it
                return
            if num_ready >= self._pool.num_at_once:
                return
            if lack is not None:
                print(
                    f"waiting for actors, {num_ready} of {self._pool.num_at_once} ready: {lack}. An autoscaling "
                    "cluster adds nodes; else lower actors.initial_actors or min_actors, or what an actor takes",
                    file=sys.stderr,
                    flush=True,
                )
            patience_s = min(3 * patience_s, _LONGEST_PATIENCE_S)


class OrphanWatch(_Watch):
    """While it is entered: gives back the places of stages whose generators are gone, so that new ones find room."""

    def __init__(self, period_s: float = 30.0) -> None:
        """It looks every so many seconds."""
        self._period_s = period_s
        super().__init__("orphan-watch")

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                give_back_orphans()
            except Exception:  # noqa: BLE001 - the cluster is busy, or the run has just ended; it looks again
                _log.debug(Event("orphans not looked for"), exc_info=True)


def starts_own_ray(ray_address: str | None) -> bool:
    """Return whether `start_ray` starts a local cluster, which then ends with this process."""
    return _address(ray_address) is None


def _address(ray_address: str | None) -> str | None:
    return ray_address or os.environ.get("RAY_ADDRESS")


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
