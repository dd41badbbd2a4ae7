"""What the engines of a run learn of the drafters that take turns: each tells its ledger, and hears of the others."""

from contextlib import suppress
from typing import Any

import ray

from actors.engine.loop import EngineLoop
from actors.units.ledgers import LocalLedger
from decoding.pace.learned import Learned

_PATIENCE_S = 5.0  # for a reply


def exchange(loop: EngineLoop, ledger: Any, process: str, begun_with: Learned | None = None) -> None:
    """Tell the ledger what an engine has learned, if drafters take turns in it, and let it hear what others have.

    Where there are no others, it hears what was learned before the run went on; and nothing while the ledger is busy.
    """
    learned = loop.engine.learned
    if learned is None:
        return
    answer = ledger.note_learned.remote(process, learned)
    with suppress(ray.exceptions.RayError):
        others = answer.value if isinstance(ledger, LocalLedger) else ray.get(answer, timeout=_PATIENCE_S)
        loop.hear(others or begun_with)
