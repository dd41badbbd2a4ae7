"""Workplace: a process that does units, as its ledger knows it, with the lock that its units share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import ray

from actors.units.reporter import Reporter
from pipeline.logs import LogSettings, set_up_logs
from pipeline.storage.location import Location


class SharedLock:
    """A lock of one event loop. A task that waits for it alone is not overtaken by tasks that come later."""

    def __init__(self) -> None:
        self._entry = asyncio.Lock()  # wakes its waiters in the order in which they came
        self._num_holders = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other tasks."""
        async with self._entry:
            self._num_holders += 1
            self._is_free.clear()
        try:
            yield
        finally:
            self._num_holders -= 1
            if not self._num_holders:
                self._is_free.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone: keep other tasks from entering, and wait until those inside have left."""
        async with self._entry:
            await self._is_free.wait()
            yield


@dataclass(frozen=True)
class Workplace:
    """A process as its ledger knows it, with the lock and the reporter that all units in it share.

    `gives_back`: if it fails and the unit is not to blame, it returns the unit to its ledger and holds the call.
    """

    reporter: Reporter
    node: str
    actor: str = ""
    host: str = ""  # its address, for people
    card: str = ""  # its GPU, for people, and told from all others
    gives_back: bool = False
    process: str = field(default_factory=lambda: uuid.uuid4().hex)
    lock: SharedLock = field(default_factory=SharedLock)

    @classmethod
    def of_run(cls, run_path: str, log_settings: LogSettings) -> Workplace:
        """Set up the log of a process that works for one run alone: stderr, in Ray a file. Return its workplace."""
        run, context = Location.parse(run_path).short_name, ray.get_runtime_context()
        node = context.get_node_id()
        set_up_logs(log_settings, run=run, job=context.get_job_id(), node=node, worker=context.get_worker_id())
        actor, host = context.get_actor_id() or "", ray.util.get_node_ip_address()
        return cls(Reporter(run, log_settings), node, actor, host, card_of(host), gives_back=True)

    @classmethod
    def beside(cls, run: str, log_settings: LogSettings) -> Workplace:
        """Return the workplace of a process that has a log of its own, and does units beside something else."""
        if not ray.is_initialized():
            return cls(Reporter(run, log_settings), "")
        context = ray.get_runtime_context()
        return cls(Reporter(run, log_settings), context.get_node_id(), context.get_actor_id() or "")


def card_of(host: str) -> str:
    """Return the name of the GPU that Ray gave this process on a host, with its uuid if CUDA tells it; or nothing."""
    own = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    if not own:
        return ""
    name = f"GPU {','.join(own)} of {host}"
    with suppress(Exception):  # a GPU that fails here fails when models are loaded, with its reason
        from torch import cuda  # a light process has none

        name += f" ({', '.join(str(cuda.get_device_properties(each).uuid) for each in range(cuda.device_count()))})"
    return name.removesuffix(" ()")
