"""A replica that dies over one token and is slow over another: the real engine, in a process that really ends."""

from __future__ import annotations

import os
import time
from typing import Any

from actors.workers.replica import Replica
from decoding.sequence import Sequence

POISON, SLOW = 97, 98  # token ids in a prompt
EXIT_CODE, STEP_SECONDS = 9, 0.1


class Fragile(Replica):
    """Ends its process in the step that reads `POISON`; that step and one with `SLOW` take a tenth of a second."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        """As a Replica."""
        super().__init__(*arguments, **values)
        engine = self._loop.engine
        step = engine.step

        def watched() -> list[Sequence]:
            token_ids = {
                token_id
                for sequence in (*engine.in_flight, *engine.up_next(()))
                for token_id in sequence.prompt_token_ids
            }
            if not token_ids.isdisjoint({POISON, SLOW}):
                time.sleep(STEP_SECONDS)  # as a large model's would
            if POISON in token_ids:
                os._exit(EXIT_CODE)
            return step()

        engine.step = watched  # type: ignore[method-assign]
