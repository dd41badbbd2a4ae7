"""DraftActor: a draft model in a process of its own, which drafts for the lanes of one or several generators.

It knows nothing that cannot be told again: whoever asks it for a lane that it does not know (it was restarted, or has
forgotten the lane) is told so, and sends everything with the next request.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Sequence as Seq

import ray

from actors.drafts.messages import Newcomer, decode_request, encode_reply, id_bytes
from actors.drafts.mirror import DraftMirror, DraftTerms
from actors.settings import ModelSettings
from decoding.checkpoint.supported import check_same_vocabulary
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from pipeline.logs import Event, LogSettings, set_up_logs

_log = logging.getLogger(__name__)


class DraftActor:
    """Calls come one by one. The lane that was silent for longest is forgotten when there are too many."""

    def __init__(self, models: ModelSettings, most_lanes: int, run: str, log_settings: LogSettings) -> None:
        """Load the draft model. What is wrong with it is told to whoever asks."""
        self._models, self._most_lanes = models, most_lanes
        self._model: LanguageModel | None = None
        self._failure: str | None = None
        self._mirrors: OrderedDict[str, tuple[DraftTerms, DraftMirror]] = OrderedDict()
        self._num_drafts, self._draft_seconds = 0, 0.0
        context = ray.get_runtime_context()
        where = {"job": context.get_job_id(), "node": context.get_node_id(), "worker": context.get_worker_id()}
        set_up_logs(log_settings, run=run, **where)
        started = time.monotonic()
        assert models.draft is not None, "settings with placement split have a draft model"
        try:
            self._model = LanguageModel.load(models.draft, models.device, models.dtype)
            check_model(self._model, models.draft)
        except ValueError as error:
            self._failure = str(error)
            _log.error(Event("draft actor not loaded", failure=self._failure))
            return
        facts = {"device": str(self._model.device), "dtype": str(self._model.dtype).removeprefix("torch.")}
        seconds = round(time.monotonic() - started, 3)
        _log.info(Event("draft actor loaded", draft=models.draft, **facts, seconds=seconds))

    def ready(self, vocab_size: int) -> int:
        """The process's id. Raises ValueError if the model cannot draft for a target with so many token ids."""
        model = self._sound_model()
        draft = self._models.draft
        assert draft is not None
        check_same_vocabulary(self._models.target, draft, vocab_size, model.vocab_size)
        return os.getpid()

    def draft(self, lane: str, terms: DraftTerms | None, message: bytes, newcomers: Seq[Newcomer]) -> bytes | None:
        """The reply to a message (`actors/drafts/messages.py`). With `terms` the lane begins anew.

        None: the lane is not known here, and nothing was done. Raises ValueError for a message that makes no sense, and
        forgets the lane then.
        """
        started = time.perf_counter()
        if terms is not None:
            self._begin(lane, terms)
        if lane not in self._mirrors:
            return None
        self._mirrors.move_to_end(lane)
        own_terms, mirror = self._mirrors[lane]
        size = id_bytes(own_terms.vocab_size)
        try:
            reply = encode_reply(mirror.draft(decode_request(message, size), newcomers), size)
        except Exception:
            self.leave(lane)  # half of the message may have been taken in
            raise
        self._num_drafts += 1
        self._draft_seconds += time.perf_counter() - started
        return reply

    def leave(self, lane: str) -> None:
        """Forget a lane, if it is known."""
        if lane in self._mirrors:
            self._mirrors.pop(lane)[1].release()

    def numbers(self) -> dict[str, float]:
        """Messages answered, seconds that took, and lanes there are."""
        return {
            "num_drafts": self._num_drafts,
            "draft_seconds": self._draft_seconds,
            "num_lanes": len(self._mirrors),
        }

    def _begin(self, lane: str, terms: DraftTerms) -> None:
        model = self._sound_model()
        self.leave(lane)
        while len(self._mirrors) >= self._most_lanes:
            silent = next(iter(self._mirrors))
            _log.warning(Event("draft lane forgotten", lane=silent, lanes=len(self._mirrors)))
            self.leave(silent)
        self._mirrors[lane] = terms, DraftMirror(model.share(), terms)

    def _sound_model(self) -> LanguageModel:
        if self._model is None:
            raise ValueError(self._failure or "the draft model is not there")
        return self._model
