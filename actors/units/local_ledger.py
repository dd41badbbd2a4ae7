"""LocalLedger: the ledger of a run whose units are all done in this process."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from actors.units.ledger import Ledger


@dataclass(frozen=True)
class LocalLedger:
    """A Ledger as a UnitWorker asks it: like the handle of an actor, with answers that are there at once."""

    ledger: Ledger

    def __getattr__(self, method: str) -> Any:
        called = getattr(self.ledger, method)
        return SimpleNamespace(remote=lambda *arguments: _Answer(called(*arguments)))


@dataclass(frozen=True)
class _Answer:
    value: Any

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self.value
