"""The drafts of a run's folder, handed to its engines while it lasts; what became of them is written back."""

import logging
import threading
from contextlib import suppress
from typing import Any

import ray

from actors.engines import backend_of
from actors.settings import GeneratorSettings
from pipeline.logs import Event
from pipeline.run.progress.draft_versions import DraftVersions

_log = logging.getLogger(__name__)


def watch_for_drafts(
    ended: threading.Event,
    run_path: str,
    settings: GeneratorSettings,
    ledger: Any,
    roster: Any = None,
    period_s: float = 2.0,
) -> None:
    """Look for drafts at once and then every `period_s`, until the run has ended."""
    versions, told = DraftVersions(run_path), set[str]()
    while not ended.is_set():
        try:
            hand_out_drafts(versions, settings, ledger, roster)
        except (ValueError, OSError) as error:  # a damaged file, or a store that does not answer
            if str(error) not in told:
                _log.warning(Event("drafts not read", failure=str(error)))
                told.add(str(error))
        except Exception:  # noqa: BLE001 - the run has just ended, and Ray with it
            _log.debug(Event("drafts not handed out"), exc_info=True)
        ended.wait(period_s)


def record_rejected_drafts(run_path: str, settings: GeneratorSettings, ledger: Any) -> None:
    """Write down, at the end of a run, what its engines have rejected since the last look."""
    with suppress(ValueError, OSError):  # the texts are there, whatever became of a draft
        hand_out_drafts(DraftVersions(run_path), settings, ledger)


def hand_out_drafts(versions: DraftVersions, settings: GeneratorSettings, ledger: Any, roster: Any = None) -> None:
    """Tell the ledger, and a roster, which drafts there are; write down and log which of them engines have rejected."""
    found = versions.all()
    if not found:
        return
    rejected = {number: (each.state, each.reason) for number, each in ray.get(ledger.rejected_drafts.remote()).items()}
    if (why := backend_of(settings).why_draft_stays) is not None:
        rejected = {each.number: ("refused", why) for each in found}
    for version in found:
        if version.is_offered and version.number in rejected:
            state, reason = rejected[version.number]
            versions.mark(version.number, state, reason)
            _log.warning(Event(f"draft {state}", version=version.number, draft=version.path, reason=reason))
    if why is not None:
        return
    wanted = ray.get(
        ledger.offer_drafts.remote(
            {each.number: each.path for each in found if each.is_offered and each.number not in rejected}
        )
    )
    if roster is not None:
        with suppress(ray.exceptions.RayError):
            for number, rejection in ray.get(roster.use_draft.remote(wanted)).items():
                ledger.reject_draft.remote(number, rejection)
