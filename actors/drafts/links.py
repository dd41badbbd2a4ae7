"""DraftLinks: a generator's links to its draft actors, and the drafters over them. Lanes use the actors in turn."""

import time
import uuid
from functools import partial
from typing import Any

import ray

from actors.drafts.drafter import RemoteDrafter
from actors.drafts.link import DraftLink, LinkStats
from actors.drafts.mirror import DraftTerms
from actors.drafts.roster import BEAT_EVERY_S
from actors.metrics import Heartbeat
from actors.settings import GeneratorSettings
from decoding.drafters.base import Drafter
from decoding.network.target import Target


class DraftLinks:
    """The connections of an engine's drafters to their draft model, for as long as the generator lives."""

    def __init__(self, settings: GeneratorSettings, roster: Any) -> None:
        """Ask `roster`, the actor of the run's DraftRoster, for the draft actors."""
        self._drafts, self._verification = settings.drafts, settings.engine.verification
        self.num_lanes = settings.num_lanes  # one is drafted for while another is verified
        self._generator = uuid.uuid4().hex
        self._roster = roster
        self._links = [
            DraftLink(partial(roster.draft_actor.remote, self._generator, index), settings.drafts)
            for index in range(settings.drafts.num_per_generator)
        ]
        self._heartbeat = Heartbeat(lambda: roster.beat.remote(self._generator), BEAT_EVERY_S)
        self._heartbeat.start()

    @property
    def stats(self) -> LinkStats:
        """Return the sums over all links. Any thread may call this."""
        return sum((link.stats for link in self._links), LinkStats())

    def actor_stats(self) -> list[dict[str, float]]:
        """Wait for the draft actors within reach, and return the `DraftActor.stats` of each."""
        actors = [actor for link in self._links if (actor := link.actor()) is not None]
        return list(ray.get([actor.stats.remote() for actor in actors]))

    def connect(self, target: Target) -> bool:
        """Return whether all draft actors get ready in time. Raises ValueError if one cannot draft for this target."""
        deadline = time.monotonic() + self._drafts.start_timeout_s
        for link in self._links:
            link.find()
        num_there = sum(link.connect(target.vocab_size, deadline) for link in self._links)
        return num_there == len(self._links)

    @property
    def are_up(self) -> bool:
        """Whether all draft actors are within reach."""
        return all(link.is_up for link in self._links)

    def close(self) -> None:
        """Leave the draft actors. One that no other generator uses ends."""
        self._heartbeat.end()
        self._roster.leave.remote(self._generator)

    def drafter(self, lane: int, target: Target, num_slots: int, max_model_len: int) -> Drafter:
        """Return the drafter of a lane. It replaces an earlier drafter of the same lane."""
        terms = DraftTerms(
            num_slots,
            max_model_len,
            target.vocab_size,
            target.eos_token_ids,
            self._verification,
            self._drafts.most_candidates,
        )
        link = self._links[lane % len(self._links)]
        return RemoteDrafter(link, f"{self._generator}/{lane}", terms, self._drafts.timeout_s)
