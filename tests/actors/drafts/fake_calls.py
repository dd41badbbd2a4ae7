"""Calls whose results are there, late or failures, as a test says."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import ray

from actors.drafts.link import Calls


class Reference:
    """A call under way: its result, or the exception that it ends with."""

    def __init__(self, result: Any = None, *, is_there: bool = True) -> None:
        self.result, self.is_there = result, is_there


class FakeCalls(Calls):
    """Waits for nothing: a result that is not there comes too late."""

    def arrived(self, references: Seq[Reference], timeout_s: float) -> list[Reference]:
        return [reference for reference in references if reference.is_there]

    def result(self, reference: Reference, timeout_s: float | None = None) -> Any:
        if not reference.is_there:
            raise ray.exceptions.GetTimeoutError
        if isinstance(reference.result, Exception):
            raise reference.result
        return reference.result


def actor_named(name: str, **methods: Any) -> Any:
    """Return a handle of an actor with this id, and with these remote methods."""
    remote = {method: SimpleNamespace(remote=function) for method, function in methods.items()}
    return SimpleNamespace(_actor_id=bytes.fromhex(name), **remote)
