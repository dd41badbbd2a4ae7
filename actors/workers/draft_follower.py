"""DraftFollower: lets an engine use the draft that its run wants, while it works.

A thread asks every few seconds which version that is. It reads the weights of another one beside the engine, which
takes them between two steps. What cannot be read or does not fit is told to the run, and the engine goes on with the
draft that it has; so is a draft that the engine took back.
"""

import logging
from collections.abc import Callable
from typing import Any

import ray

from actors.engine.loop import EngineLoop
from actors.errors import describe
from actors.metrics import Heartbeat
from actors.run_notes import Rejection, WantedDraft
from actors.settings import ModelSettings
from decoding.engine.draft_folder import read_replacement
from pipeline.logs import Event

LOOK_EVERY_S = 2.0
_PATIENCE_S = 30.0  # for a reply
Wanted = Callable[[], WantedDraft]
Reject = Callable[[int, Rejection], object]
_log = logging.getLogger(__name__)


class DraftFollower:
    """What one engine uses. Only one thread at a time may call `look`."""

    def __init__(self, loop: EngineLoop, models: ModelSettings, wanted: Wanted, reject: Reject) -> None:
        """Follow a run with the engine of a loop, which was loaded with these models.

        `wanted` returns the version that engines are to use, and raises if the run cannot be asked now. `reject` tells
        the run that this engine does not use a version.
        """
        self._loop, self._models, self._wanted, self._tell_rejected = loop, models, wanted, reject
        self._rejected: set[int] = set()  # by this engine: what the run has not heard of yet is not tried again
        self._heartbeat = Heartbeat(self.look, LOOK_EVERY_S)

    def start(self) -> None:
        """Look now, so that the engine begins with the wanted draft, and then every few seconds."""
        self.look()
        self._heartbeat.start()

    def look(self) -> None:
        """Compare what the engine uses with what the run wants, and replace it if that differs."""
        try:
            rollback = self._loop.take_rollback()
            if rollback is not None:
                shares = f"{rollback.after:.3f} of its tokens were accepted, and {rollback.before:.3f} before"
                self._reject(rollback.version, Rejection("rolled back", shares))
            wanted = self._wanted()
        except Exception as error:  # noqa: BLE001 - the run is busy, or has just ended; the next look asks again
            _log.debug(Event("draft not looked for", failure=describe(error)))
            return
        if wanted.number != self._loop.draft_version and wanted.number not in self._rejected:
            self._use(wanted)

    def _use(self, wanted: WantedDraft) -> None:
        models = self._models
        assert models.draft is not None, "a run without a draft has no offers"
        try:
            if self._loop.has_remote_drafts:
                self._loop.draft_was_replaced(wanted.number)
            else:
                path = wanted.path or models.draft
                weights = read_replacement(path, models.draft, models.dtype, models.target)
                self._loop.replace_draft(weights, wanted.number)
        except Exception as error:  # noqa: BLE001 - the engine goes on with the draft that it has
            self._reject(wanted.number, Rejection("refused", describe(error)))
            return
        _log.info(Event("draft replaced", version=wanted.number, draft=wanted.path or models.draft))

    def _reject(self, number: int, rejection: Rejection) -> None:
        self._rejected.add(number)
        self._tell_rejected(number, rejection)


def offers_of(ledger: Any, roster: Any) -> tuple[Wanted, Reject]:
    """Return how the run of a ledger is asked and told.

    Where the draft is in draft actors, of which `roster` knows, an engine follows what all of them use already.
    """

    def wanted() -> WantedDraft:
        found: WantedDraft = ray.get(ledger.wanted_draft.remote(), timeout=_PATIENCE_S)
        return found

    def used_by_all() -> WantedDraft:
        return WantedDraft(ray.get(roster.draft_version.remote(), timeout=_PATIENCE_S))

    return used_by_all if roster is not None else wanted, ledger.reject_draft.remote
