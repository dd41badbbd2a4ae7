"""DraftLinks: a generator's ways to its draft actors, and the drafters over them. Lanes take the actors in turn."""

from __future__ import annotations

import time
import uuid
from typing import Any

import ray

from actors.drafts.drafter import RemoteDrafter
from actors.drafts.link import DraftLink, LinkNumbers
from actors.drafts.mirror import DraftTerms
from actors.drafts.roster import BEAT_EVERY_S
from actors.metrics import Heartbeat
from actors.settings import GeneratorSettings
from decoding.drafters.base import Drafter
from decoding.network.target import Target


class DraftLinks:
    """What an engine's drafters reach their draft model through, for as long as the generator lives."""

    def __init__(self, settings: GeneratorSettings, roster: Any) -> None:
        """`roster` is the run's DraftRoster, an actor."""
        self._drafts, self._verification = settings.drafts, settings.engine.verification
        self.num_lanes = settings.num_lanes  # one is drafted for while another is verified
        self._generator = uuid.uuid4().hex
        self._roster = roster

        def link(index: int) -> DraftLink:
            return DraftLink(lambda lost: roster.draft_actor.remote(self._generator, index, lost), settings.drafts)

        self._links = [link(index) for index in range(settings.drafts.num_per_generator)]
        self._heartbeat = Heartbeat(lambda: roster.beat.remote(self._generator), BEAT_EVERY_S)
        self._heartbeat.start()

    @property
    def numbers(self) -> LinkNumbers:
        """Of all links together; any thread may ask."""
        return sum((link.numbers for link in self._links), LinkNumbers())

    def actor_numbers(self) -> list[dict[str, float]]:
        """What the draft actors within reach say of themselves (`DraftActor.numbers`). Waits for them."""
        actors = [actor for link in self._links if (actor := link.actor()) is not None]
        return list(ray.get([actor.numbers.remote() for actor in actors]))

    def connect(self, target: Target) -> bool:
        """Wait for the draft actors, for as long as the settings say; whether all are there.

        Raises ValueError if one is there and cannot draft for this target.
        """
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
        """No drafts are needed any more: a draft actor that nobody else uses ends."""
        self._heartbeat.end()
        self._roster.leave.remote(self._generator)

    def drafter(self, lane: int, target: Target, num_slots: int, max_model_len: int) -> Drafter:
        """The drafter of a lane; one that was made before for the same lane is of no use from now on."""
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
