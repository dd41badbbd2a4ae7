"""RemoteDrafter: the drafter of a lane whose draft model runs in a draft actor; and a generator's links to such actors.

`ask` sends the newly committed tokens and returns at once; `propose` waits a limited time for the reply. A row without
a reply has no draft, which changes no token. The draft actor keeps the rows in the lane's own slots, so a request names
a row by its slot and carries only the tokens that are new (`actors/drafts/mirror.py`). Lanes use the actors in turn.
"""

import time
import uuid
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
import torch

from actors.drafts.link import DraftLink, LinkStats
from actors.drafts.mirror import Distributions, DraftReply, DraftRequest, DraftTerms, RowOrigin, RowUpdate
from actors.drafts.roster import BEAT_EVERY_S
from actors.heartbeat import Heartbeat
from actors.run_notes import DraftWork
from actors.settings import GeneratorSettings
from decoding.drafters.base import Drafter
from decoding.network.target import Target
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

_MAX_SWAPS = 64  # of a request; with more, the lane begins anew and every row is sent whole


@dataclass
class _Known:
    """A row as the draft actor knows it once it has read the requests sent so far."""

    sequence: Sequence
    length: int


@dataclass(frozen=True)
class _Pending:
    """A request that waits for its reply."""

    reference: Any
    generation: int  # of the link
    sequences: tuple[Sequence, ...]  # the rows of the round
    slots: tuple[int, ...]  # of the rows that are to be drafted for
    sent_at: float
    is_overdue: bool = False  # the link waits for the reply


class RemoteDrafter(Drafter):
    """A drafter whose drafts come from another process, or not at all."""

    is_remote = True

    def __init__(self, link: DraftLink, lane: str, terms: DraftTerms, timeout_s: float) -> None:
        """Use `link`, which several drafters may share. `lane` must be a name of this drafter alone."""
        self._link, self._lane, self._terms, self._timeout_s = link, lane, terms, timeout_s
        self._known: list[_Known | None] = [None] * terms.num_slots
        self._swaps: list[tuple[int, int]] = []
        self._generation = -1  # of the link when the lane began there
        self._pending: _Pending | None = None
        self._rows_of_the_round: tuple[Sequence, ...] = ()

    @property
    def has_model(self) -> bool:
        """Whether the draft actor is within reach."""
        return self._link.is_up

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Forget the row that the slot had; the new one is sent when it first drafts."""
        self._known[slot] = None

    def ask(self, rows: Rows) -> None:
        """Send the rows that are to draft, unless the actor is out of reach or has not replied to the last request."""
        self._rows_of_the_round = rows.sequences
        if self._pending is not None:
            self._collect(self._pending, 0.0)
        actor = self._link.actor()
        if self._pending is not None or actor is None or not any(rows.num_draft_tokens):
            return
        terms = None
        if self._generation != self._link.generation or len(self._swaps) > _MAX_SWAPS:
            terms, self._generation, self._known = self._terms, self._link.generation, [None] * len(self._known)
            self._swaps = []
        limits = enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True))
        updates = [self._update(slot, sequence, limit) for slot, (sequence, limit) in limits if limit]
        request = DraftRequest(self._swaps, updates)
        self._swaps = []
        stats = self._link.stats
        stats.num_requests += 1
        stats.num_rows += len(updates)
        stats.num_new_row_bytes += request.num_new_row_bytes
        stats.num_bytes_sent += request.num_bytes
        reference = actor.draft.remote(self._lane, terms, request)
        slots = tuple(update.slot for update in updates)
        self._pending = _Pending(reference, self._generation, rows.sequences, slots, time.monotonic())

    def propose(self, rows: Rows) -> Draft:
        """Return the actor's drafts for these rows if they come in time, otherwise empty drafts."""
        if rows.sequences is not self._rows_of_the_round:
            self.ask(rows)
        self._rows_of_the_round = ()
        pending = self._pending
        reply = None
        if pending is not None and pending.sequences is rows.sequences:
            started = time.perf_counter()
            reply = self._collect(pending, 0.0 if self._link.is_late else self._timeout_s)
            self._link.stats.wait_seconds += time.perf_counter() - started
            self._link.stats.num_timeouts += self._pending is not None
        if pending is None or reply is None:
            return make_draft(rows, {}, None, self._terms.vocab_size)
        drafted = dict(zip(pending.slots, (draft or [] for draft in reply.drafts), strict=True))
        return make_draft(rows, drafted, reply.distributions, self._terms.vocab_size)

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots; the actor learns of it with the next request."""
        known = self._known
        if known[first] is not None or known[second] is not None:
            self._swaps.append((first, second))
        known[first], known[second] = known[second], known[first]

    def reset(self, slot: int) -> None:
        """Send the row whole next time: the actor then begins it anew."""
        self._known[slot] = None

    def _update(self, slot: int, sequence: Sequence, limit: int) -> RowUpdate:
        """Return the tokens of a row that the actor lacks: the new ones, or all if it does not know the row."""
        known, length = self._known[slot], len(sequence)
        self._known[slot] = _Known(sequence, length)
        if known is None or known.sequence is not sequence or length < known.length:
            origin = RowOrigin(len(sequence.prompt_token_ids), sequence.params, sequence.noise_key, sequence.scope)
            return RowUpdate(slot, limit, 0, list(sequence.token_ids), origin)
        return RowUpdate(slot, limit, known.length, sequence.token_ids[known.length :])

    def _collect(self, pending: _Pending, timeout_s: float) -> DraftReply | None:
        """Return the reply if it comes within `timeout_s`; the request is then settled."""
        if pending.generation != self._link.generation:  # another lane found that the actor is lost
            self._pending = None
            return None
        if not self._link.calls.arrived([pending.reference], timeout_s):
            # An engine that was cleared leaves requests behind whose replies no round waits for.
            if timeout_s or time.monotonic() - pending.sent_at >= self._timeout_s:
                self._link.late(pending.reference, pending.generation)
                self._pending = replace(pending, is_overdue=True)
            return None
        self._pending = None
        try:
            reply: DraftReply | None = self._link.calls.result(pending.reference)
        except ray.exceptions.RayError as error:
            self._link.failed(pending.generation, error)
            return None
        if not pending.is_overdue:
            self._link.answered()
        if reply is None:  # the actor was restarted, or has forgotten this lane
            self._generation = -1
            return None
        self._link.stats.draft_seconds += reply.seconds
        self._link.stats.num_bytes_received += reply.num_bytes
        self._link.stats.num_distribution_bytes += reply.num_distribution_bytes
        for slot, draft in zip(pending.slots, reply.drafts, strict=True):
            if draft is None:
                self._known[slot] = None
        return reply


def make_draft(
    rows: Rows, drafted: Mapping[int, Seq[int]], distributions: Distributions | None, vocab_size: int
) -> Draft:
    """Return the draft of a round with these tokens in these slots, and their distributions in the same order."""
    device = rows.sampling.keys_B.device
    if rows.rule.text_depends_on_draft and distributions is None:  # it cannot judge a token without its distribution
        drafted = {}
    counts = [len(drafted.get(slot, ())) for slot in range(len(rows.sequences))]
    width = max(counts, default=0)
    tokens = [[*drafted.get(slot, ()), *[0] * (width - count)] for slot, count in enumerate(counts)]
    probs_BKV = None
    if distributions is not None and width:
        places = [(slot, step) for slot, token_ids in drafted.items() for step in range(len(token_ids))]
        rows_N, steps_N = torch.tensor(places, device=device).T
        ids_NM = torch.tensor(distributions.ids_NM, dtype=torch.int64, device=device)
        probs_BKV = torch.zeros(len(counts), width, vocab_size, device=device)
        probs_BKV[rows_N[:, None], steps_N[:, None], ids_NM] = torch.tensor(distributions.probs_NM, device=device)
    return Draft(
        torch.tensor(tokens, dtype=torch.int64, device=device).reshape(len(counts), width),
        torch.tensor(counts, dtype=torch.int64, device=device),
        probs_BKV,
        max_draft_tokens_B=tuple(counts),
    )


class DraftLinks:
    """The connections of an engine's drafters to their draft model, for as long as the generator lives."""

    def __init__(self, settings: GeneratorSettings, roster: Any) -> None:
        """Ask `roster`, the actor of the run's DraftRoster, for the draft actors."""
        self._drafts, self._verification = settings.drafts, settings.engine.verification
        self._num_draft_tokens = settings.engine.num_speculative_tokens
        # One is drafted for while another is verified; more of them hide a delay.
        self.num_lanes, self.most_lanes = settings.num_lanes, settings.most_lanes
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

    def work(self, engine_seconds: float) -> DraftWork:
        """Return what the draft actors did in the time that the engine worked. Any thread may call this."""
        stats, actor_seconds = self.stats, engine_seconds * self._drafts.per_target
        return DraftWork(engine_seconds, actor_seconds, stats.wait_seconds, stats.draft_seconds)

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
            self._num_draft_tokens,
        )
        link = self._links[lane % len(self._links)]
        return RemoteDrafter(link, f"{self._generator}/{lane}", terms, self._drafts.timeout_s)
