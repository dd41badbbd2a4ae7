"""DraftActor: a draft model in a process of its own, which drafts for the lanes of one or several generators.

A draft actor may forget a lane at any time, or be replaced by a new one: it then says that it does not know the lane,
and the generator sends all its rows with the next request.
"""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from actors.drafts.mirror import DraftMirror, DraftReply, DraftRequest, DraftTerms
from actors.engine.watchdog import end_process
from actors.settings import ModelSettings
from decoding.checkpoint.supported import check_same_vocabulary
from decoding.device import is_device_fault
from decoding.engine.draft_folder import read_replacement
from decoding.grammar.grammars import Grammars
from decoding.kept.models import load_checked
from decoding.network.language_model import LanguageModel
from decoding.vocabulary.grammars import grammars_of
from pipeline.logs import Event, LogSettings, set_up_logs

WEIGHTS = "weights"  # the concurrency group of calls that read weights while others draft
_log = logging.getLogger(__name__)


class DraftActor:
    """A drafter for at most `max_lanes` lanes: with more, it forgets the one that was silent for longest."""

    def __init__(self, models: ModelSettings, max_lanes: int, run: str, log_settings: LogSettings) -> None:
        """Load the draft model. If that fails, every later call raises the reason."""
        self._models, self._max_lanes = models, max_lanes
        self._model: LanguageModel | None = None
        self._failure: str | None = None
        self._mirrors: OrderedDict[str, DraftMirror] = OrderedDict()
        self._grammars: Grammars | None = None
        self._drafting = threading.RLock()  # held over whatever changes the lanes or the weights
        context = ray.get_runtime_context()
        where = {"job": context.get_job_id(), "node": context.get_node_id(), "worker": context.get_worker_id()}
        set_up_logs(log_settings, run=run, **where)
        started = time.monotonic()
        assert models.draft is not None, "settings with placement split have a draft model"
        try:
            self._model = load_checked(models.draft, models.device, models.dtype)
        except ValueError as error:
            self._failure = str(error)
            _log.error(Event("draft actor not loaded", failure=self._failure))
            return
        facts = {"device": str(self._model.device), "dtype": str(self._model.dtype).removeprefix("torch.")}
        seconds = round(time.monotonic() - started, 3)
        _log.info(Event("draft actor loaded", draft=models.draft, **facts, seconds=seconds))

    def ready(self, vocab_size: int) -> int:
        """Return the process's id. Raises ValueError if the model cannot draft for a target with `vocab_size` ids."""
        model, draft = self._sound_model(), self._models.draft
        assert draft is not None
        check_same_vocabulary(self._models.target, draft, vocab_size, model.vocab_size)
        return os.getpid()

    def draft(self, lane: str, terms: DraftTerms | None, request: DraftRequest) -> DraftReply | None:
        """Return the reply to a lane's request; None if the lane is not known here. With `terms` the lane begins anew.

        Raises ValueError for a request that does not fit the lane, and forgets the lane then.
        """
        started = time.perf_counter()
        with self._guarded():
            if terms is not None:
                self._begin(lane, terms)
            if lane not in self._mirrors:
                return None
            self._mirrors.move_to_end(lane)
            try:
                reply = self._mirrors[lane].draft(request)
            except Exception as error:
                if not is_device_fault(error):
                    self.leave(lane)  # half of the request may have been applied
                raise
        return reply._replace(seconds=time.perf_counter() - started)

    @ray.method(concurrency_group=WEIGHTS)  # type: ignore[untyped-decorator]  # Ray has no types
    def use_draft(self, path: str | None) -> None:
        """Go on with the weights of the draft in `path`, or with those that the actor began with (None).

        They are read beside the drafting. Every row is read again before it drafts. Raises ValueError if that is no
        draft that could take this one's place; nothing has changed then.
        """
        model, began_with = self._sound_model(), self._models.draft
        assert began_with is not None
        path = path or began_with
        weights = read_replacement(path, began_with, self._models.dtype)
        try:
            ready = model.weights.check(weights)
        except ValueError as error:
            raise ValueError(f"the draft {path!r} {error}") from error
        with self._guarded():
            model.weights.put(ready)
            for mirror in self._mirrors.values():
                mirror.renew()
        _log.info(Event("draft replaced", draft=path))

    def leave(self, lane: str) -> None:
        """Forget a lane, if it is known."""
        with self._guarded():
            if lane in self._mirrors:
                self._mirrors.pop(lane).release()

    def num_lanes(self) -> int:
        """Return the number of lanes that are known here."""
        return len(self._mirrors)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Hold what one call at a time may do. If the device fails, the process ends, and another takes its place."""
        with self._drafting:
            try:
                yield
            except Exception as error:
                if is_device_fault(error):  # nothing more can be computed here
                    end_process(Event("draft actor lost its device", cause=str(error)))
                raise

    def _begin(self, lane: str, terms: DraftTerms) -> None:
        model = self._sound_model()
        self.leave(lane)
        while len(self._mirrors) >= self._max_lanes:
            silent = next(iter(self._mirrors))
            _log.warning(Event("draft lane forgotten", lane=silent, lanes=len(self._mirrors)))
            self.leave(silent)
        models = self._models
        if self._grammars is None:  # all lanes have the same target
            tokenizer = models.tokenizer or models.target
            self._grammars = grammars_of(tokenizer, terms.vocab_size, terms.eos_token_ids)
        self._mirrors[lane] = DraftMirror(model.share(), terms, self._grammars)

    def _sound_model(self) -> LanguageModel:
        if self._model is None:
            raise ValueError(self._failure or "the draft model was not loaded")
        return self._model
