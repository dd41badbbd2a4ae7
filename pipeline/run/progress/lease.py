"""The lease of a run: one driver at a time. It only saves work: commits can be repeated, so no row depends on it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from pipeline.logs import Event
from pipeline.run.directory import DRIVER_LOCK, RunDirectory
from pipeline.storage.location import Location
from pipeline.storage.whole_file import replace_file, to_json

_RENEWALS_PER_TIMEOUT = 6
_LOOKS_PER_TIMEOUT = 40
_LONGEST_LOOK_S = 1.0
_GONE = "no other driver: the file _LEASE is gone"
_log = logging.getLogger(__name__)


class LeaseHeld(Exception):
    """Another driver works on the run, and is alive."""


class LeaseLost(Exception):
    """Another driver took over, because this one was silent for longer than the timeout, or the file is gone."""


@dataclass(frozen=True)
class Holder:
    """The driver that holds a lease: the content of `_LEASE`. The times, by its own clock, are for people only."""

    token: str
    host: str
    pid: int
    started: str
    renewed: str
    num_renewals: int
    timeout_s: float
    num_engines: int | None = None  # that have loaded their models; None until the driver knows
    failed_places: list[str] = field(default_factory=list)  # why places do no units now
    draft_work: str = ""  # what draft actors do, in words; empty without any

    @classmethod
    def from_bytes(cls, content: bytes | None) -> Holder | None:
        """Read the holder that `to_bytes` wrote; return None for any other content, or none."""
        try:
            return cls(**json.loads(content or b""))
        except (ValueError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        """Return the content of `_LEASE`."""
        return to_json(asdict(self))

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}, since {self.started}, last sign of life {self.renewed}"


@dataclass
class Lease:
    """A lease that this process holds; a thread of `hold_lease` calls `renew`."""

    location: Location
    temporary: Location
    holder: Holder
    lost_to: str | None = None
    num_engines: int | None = None  # that the next sign of life tells of, as of these
    failed_places: list[str] = field(default_factory=list)
    draft_work: str = ""
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def renew(self) -> None:
        """Give a sign of life, or learn that the lease is lost. Raises OSError if the storage does not answer."""
        with self._writing:
            if self.lost_to is not None:
                return
            content = self.location.read_if_there()
            found = Holder.from_bytes(content)
            if found is None or found.token != self.holder.token:
                self.lost_to = _GONE if content is None else str(found or "an unknown driver, whose file is damaged")
                _log.warning(Event("lease lost", lease=self.location.name, to=self.lost_to))
                return
            self.holder = replace(
                self.holder,
                renewed=_now(),
                num_renewals=self.holder.num_renewals + 1,
                num_engines=self.num_engines,
                failed_places=self.failed_places,
                draft_work=self.draft_work,
            )
            self.write()

    def write(self) -> None:
        """Write the holder to `_LEASE`, in place of any older content."""
        replace_file(self.location, self.holder.to_bytes(), self.temporary)

    def refuse_if_lost(self) -> None:
        """Raise LeaseLost if another driver took over, or the file of the lease was deleted."""
        if self.lost_to == _GONE:
            raise LeaseLost(
                f"the lease {self.location.name} of this driver is gone: the file was deleted, or another driver took "
                "over and has ended since. This driver stops here; what is committed stays, and the same command "
                "goes on with it"
            )
        if self.lost_to is not None:
            raise LeaseLost(
                f"this driver gave no sign of life for over {self.holder.timeout_s:g} s (suspended, or cut off from "
                f"the storage), and its lease {self.location.name} went to {self.lost_to}. It stops here; "
                "what is committed stays, and the other driver goes on"
            )


@contextmanager
def hold_lease(
    run_directory: RunDirectory, timeout_s: float = 60.0, renew_every_s: float | None = None
) -> Iterator[Lease]:
    """Hold the run's lease while the block lasts: the holder is written to `_LEASE`, and a thread renews it.

    On a local disk the death of an earlier holder is known at once, because its lock is gone. Elsewhere it is known
    when its file has not changed for its `timeout_s`, as measured here (clocks of two machines are never compared), so
    this may wait that long. Raises LeaseHeld, naming the holder, if it is alive, and OSError.
    """
    location = run_directory.location.child("_LEASE")
    retries = replace(location.retries, max_seconds=min(location.retries.max_seconds, timeout_s / 2))
    location = replace(location, retries=retries)  # a sign of life that comes after the timeout is too late
    with _driver_lock(run_directory, location) as is_locked:
        _refuse_living_holder(location, timeout_s, is_locked)
        now = _now()
        holder = Holder(secrets.token_hex(8), socket.gethostname(), os.getpid(), now, now, 0, timeout_s)
        lease = Lease(location, run_directory.temporary, holder)
        lease.write()
        if not is_locked:  # two drivers may have come this far at once: the file of the later one stays
            time.sleep(min(_LONGEST_LOOK_S, timeout_s / _LOOKS_PER_TIMEOUT))
            lease.renew()
            if lease.lost_to == _GONE:
                lease.refuse_if_lost()
            if lease.lost_to is not None:
                raise LeaseHeld(_held(location, lease.lost_to, timeout_s))
        end = threading.Event()
        period = timeout_s / _RENEWALS_PER_TIMEOUT if renew_every_s is None else renew_every_s
        thread = threading.Thread(target=_renew_until, args=(end, lease, period), name="lease", daemon=True)
        thread.start()
        _log.info(Event("lease taken", lease=location.name, pid=holder.pid, timeout_s=timeout_s, locked=is_locked))
        try:
            yield lease
        finally:
            end.set()
            thread.join(5)
            with suppress(OSError):  # a file that cannot be deleted expires
                found = Holder.from_bytes(location.read_if_there())
                if found is not None and found.token == holder.token:
                    location.remove()
                    _log.info(Event("lease given back", lease=location.name, renewals=found.num_renewals))


def _renew_until(end: threading.Event, lease: Lease, period_s: float) -> None:
    while not end.wait(period_s):
        try:
            lease.renew()
        except OSError as error:  # once the storage answers again, it shows whether the lease is lost
            _log.warning(Event("lease not renewed", lease=lease.location.name, error=str(error)))


def _refuse_living_holder(location: Location, timeout_s: float, is_locked: bool) -> None:
    """Wait until no living driver holds the lease. Raises LeaseHeld at the first sign of life."""
    first = location.read_if_there()
    if first is None:
        return
    holder = Holder.from_bytes(first)
    patience_s = timeout_s if holder is None else holder.timeout_s
    if holder is not None and is_locked and holder.host == socket.gethostname():
        patience_s = 0.0  # if it lived, it would have the lock
    give_up = time.monotonic() + patience_s
    while (left := give_up - time.monotonic()) > 0:
        time.sleep(min(left, _LONGEST_LOOK_S, patience_s / _LOOKS_PER_TIMEOUT))
        content = location.read_if_there()
        if content is None:
            return  # given back
        if content != first:
            raise LeaseHeld(_held(location, Holder.from_bytes(content), patience_s))
    _log.info(Event("lease of a dead driver", lease=location.name, holder=str(holder or "a damaged file")))


@contextmanager
def _driver_lock(run_directory: RunDirectory, location: Location) -> Iterator[bool]:
    """Hold the lock that a process loses when it dies; yield False where there are no locks. Raises LeaseHeld."""
    if not run_directory.location.is_local:
        yield False
        return
    with open(run_directory.temporary.child(DRIVER_LOCK).path, "ab") as lock:
        is_locked = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LeaseHeld(_held(location, Holder.from_bytes(location.read_if_there()), None)) from error
        except OSError:  # a mount without locks: the file's expiry decides
            is_locked = False
        yield is_locked


def _held(location: Location, holder: Holder | str | None, timeout_s: float | None) -> str:
    expiry = "" if timeout_s is None else f" A driver that died is noticed after {timeout_s:g} s."
    return (
        f"another driver works on this run ({holder or 'unknown'}; it says so in {location.name}). "
        f"Wait for it or stop it, or use a new output directory.{expiry}"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
