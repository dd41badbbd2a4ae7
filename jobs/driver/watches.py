"""Watches: threads beside a run. They report missing room on the cluster, give back what dead actors held, move work
from nodes that are about to go, and hand the drafts of the run's folder to its engines; what became of these drafts is
written back.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray

from actors.engines import backend_of
from actors.resources import shortage
from actors.settings import GeneratorSettings
from actors.stages.places import give_back_orphans
from actors.units.ledger import Ledger
from jobs.driver.progress import BETWEEN_BEATS_S, Progress
from pipeline.logs import Event
from pipeline.ray_internals import draining_nodes
from pipeline.run.progress.draft_versions import DraftVersions
from pipeline.streaming.pool import ActorPool

_LONGEST_PATIENCE_S = 600.0
_BETWEEN_LOOKS_S = 2.0  # at what the engines have written
_log = logging.getLogger(__name__)


@contextmanager
def watching(watch: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run `watch` in a thread while the block runs; its first argument is the event that ends it."""
    ended = threading.Event()
    threading.Thread(target=watch, args=(ended, *arguments), name=watch.__name__, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def watch_for_engines(
    ended: threading.Event, ledger: Any, num_wanted: int, progress: Progress, look_every_s: float = 0.25
) -> None:
    """Show how many engines have loaded their models, up to as many as were asked for at once, and what they write."""
    num_up, pause_s = 0, look_every_s
    while not ended.wait(pause_s):
        try:
            asked = ledger.num_joined, ledger.written, ledger.first_text
            now_up, (num_texts, num_tokens), first_text = ray.get([question.remote() for question in asked])
        except Exception:  # noqa: BLE001 - the run has just ended, and Ray with it
            return
        if num_up < min(now_up, num_wanted):
            num_up = min(now_up, num_wanted)
            progress.engines_up(num_up, num_wanted)
        elif num_up:
            progress.written(num_texts, num_tokens, first_text)
        pause_s = look_every_s if num_up < num_wanted else _BETWEEN_LOOKS_S


def watch_for_texts(ended: threading.Event, ledger: Ledger, progress: Progress) -> None:
    """Show what an engine in this process writes, which its ledger is told."""
    while not ended.wait(BETWEEN_BEATS_S):
        progress.written(*ledger.written(), ledger.first_text())


def watch_for_shortage(
    ended: threading.Event,
    pool: ActorPool,
    ledger: Any,
    settings: GeneratorSettings | None = None,
    patience_s: float = 20.0,
) -> None:
    """Print what the cluster lacks for the pool when actors do not start: after `patience_s`, then ever more rarely.

    It ends when as many actors are ready, as the ledger counts them, as were asked for at once. `settings` name what
    each of them needs besides.
    """
    while not ended.wait(patience_s):
        try:
            num_ready = ray.get(ledger.num_joined.remote())
            lack = shortage(pool, ray.nodes(), settings)
        except Exception:  # noqa: BLE001 - the run has just ended, and Ray with it
            return
        if num_ready >= pool.num_at_once:
            return
        if lack is not None:
            print(
                f"waiting for actors, {num_ready} of {pool.num_at_once} ready: {lack}. An autoscaling "
                "cluster adds nodes; else lower actors.initial_actors or min_actors, or what an actor takes",
                file=sys.stderr,
                flush=True,
            )
        patience_s = min(3 * patience_s, _LONGEST_PATIENCE_S)


def watch_for_orphans(ended: threading.Event, period_s: float = 30.0) -> None:
    """Remove the placement groups of stages whose generators have died, so that new ones find room."""
    while not ended.wait(period_s):
        try:
            give_back_orphans()
        except Exception:  # noqa: BLE001 - the cluster is busy, or the run has just ended; it looks again
            _log.debug(Event("orphans not looked for"), exc_info=True)


def watch_for_drains(ended: threading.Event, ledger: Any, roster: Any = None, period_s: float = 2.0) -> None:
    """Tell the ledger, and a roster, which nodes are about to go, as spot machines are 30 to 120 s before they do.

    They are told at every look: an actor may still come up on such a node, and the roster ends what it has replaced.
    """
    told = set[str]()
    while not ended.wait(period_s):
        try:
            leaving = draining_nodes()
            if leaving:
                ray.get([each.drain.remote(leaving) for each in (ledger, roster) if each is not None])
            for node in sorted(leaving - told):
                _log.info(Event("node drains", node=node))
            told |= leaving
        except Exception:  # noqa: BLE001 - the cluster is busy, or the run has just ended; it looks again
            _log.debug(Event("draining nodes not looked for"), exc_info=True)


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
