"""Workplace: the process in which units are done."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import ray

from actors.units.reporter import Reporter
from actors.units.shared_lock import SharedLock
from pipeline.logs import LogSettings


@dataclass(frozen=True)
class Workplace:
    """A process as its ledger knows it, with the lock and the reporter that all units in it share."""

    reporter: Reporter
    node: str
    process: str = field(default_factory=lambda: uuid.uuid4().hex)
    lock: SharedLock = field(default_factory=SharedLock)

    @classmethod
    def of_run(cls, run_path: str, log_settings: LogSettings) -> Workplace:
        """Return the workplace of a process that works for one run alone; sets up its log."""
        return cls(Reporter.of_run(run_path, log_settings), ray.get_runtime_context().get_node_id())

    @classmethod
    def beside(cls, run: str, log_settings: LogSettings) -> Workplace:
        """Return the workplace of a process that has a log of its own, and does units beside something else."""
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return cls(Reporter(run, log_settings), node)
