"""RemoteDrafter: the drafter of a lane whose draft model stands in a draft actor.

`ask` sends what was committed since the last time and goes on; `propose` waits for the answer, for a while. Where none
comes, the row is drafted nothing, which changes no token. The actor's rows stand in the lane's own slots, so that what
is known there of a row can be told by a few numbers (`actors/drafts/messages.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch

from actors.drafts.link import DraftLink
from actors.drafts.messages import (
    MOST_MISSED,
    Law,
    Missed,
    Newcomer,
    Progress,
    Reply,
    Request,
    decode_reply,
    encode_request,
    id_bytes,
    to_ids,
)
from actors.drafts.mirror import DraftTerms
from decoding.drafters.base import Drafter
from decoding.sampling.rows import Rows
from decoding.sampling.verify import Draft
from decoding.sequence import Sequence

_MOST_SWAPS = 64  # to be told; with more, the rows are sent whole


@dataclass
class _Known:
    """A row as the actor knows it once it has read what was sent."""

    sequence: Sequence
    length: int
    drafted: tuple[int, ...] | None = None  # its newest draft; None: never seen here
    is_known: bool = True


@dataclass(frozen=True)
class _Asked:
    """A request that is under way."""

    reference: Any
    generation: int
    sequences: tuple[Sequence, ...]  # the rows of the round
    told: tuple[tuple[int, _Known], ...]  # those of the request, with their slots, in its order
    sent_at: float
    is_overdue: bool = False  # and its link waits for it


class RemoteDrafter(Drafter):
    """Drafts of another process, or none."""

    is_remote = True

    def __init__(self, link: DraftLink, lane: str, terms: DraftTerms, timeout_s: float) -> None:
        """`lane` is a name that the draft actor knows nobody else by. Several drafters may share a link."""
        self._link, self._lane, self._terms, self._timeout_s = link, lane, terms, timeout_s
        self._id_bytes = id_bytes(terms.vocab_size)
        self._known: list[_Known | None] = [None] * terms.num_slots
        self._swaps: list[tuple[int, int]] = []
        self._generation = -1  # of the link, in which the actor was told of this lane
        self._asked: _Asked | None = None
        self._rows_of_the_round: tuple[Sequence, ...] = ()

    @property
    def has_model(self) -> bool:
        """Whether the draft actor is within reach."""
        return self._link.is_up

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        """Whoever stood here is gone; the newcomer is sent when it first drafts."""
        self._known[slot] = None

    def ask(self, rows: Rows) -> None:
        """Send the rows that are to draft, unless the actor is out of reach or still owes an answer."""
        self._rows_of_the_round = rows.sequences
        if self._asked is not None:
            self._collect(self._asked, 0.0)
        actor = self._link.actor()
        if self._asked is not None or actor is None or not any(rows.num_draft_tokens):
            return
        terms = None
        if self._generation != self._link.generation or len(self._swaps) > _MOST_SWAPS:
            terms, self._generation, self._known = self._terms, self._link.generation, [None] * len(self._known)
            self._swaps = []
        told: list[tuple[int, _Known, Progress | Missed | Newcomer]] = []
        for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True)):
            if limit:
                news = self._news(slot, sequence, limit)
                known = self._known[slot] = _Known(sequence, len(sequence))
                told.append((slot, known, news))
        kinds: tuple[type, ...] = (Progress, Missed, Newcomer)
        told.sort(key=lambda row: kinds.index(type(row[2])))
        request = Request(
            tuple(self._swaps),
            tuple(news for _, _, news in told if isinstance(news, Progress)),
            tuple(news for _, _, news in told if isinstance(news, Missed)),
        )
        newcomers = [news for _, _, news in told if isinstance(news, Newcomer)]
        message = encode_request(request, self._id_bytes)
        self._swaps = []
        numbers = self._link.numbers
        numbers.num_requests += 1
        numbers.num_rows += len(told)
        numbers.num_new_row_bytes += sum(newcomer.num_bytes for newcomer in newcomers)
        numbers.num_bytes_sent += len(message) + sum(newcomer.num_bytes for newcomer in newcomers)
        reference = actor.draft.remote(self._lane, terms, message, newcomers)
        places = tuple((slot, known) for slot, known, _ in told)
        self._asked = _Asked(reference, self._generation, rows.sequences, places, time.monotonic())

    def propose(self, rows: Rows) -> Draft:
        """What the actor drafted for these rows, if it comes in time."""
        if rows.sequences is not self._rows_of_the_round:
            self.ask(rows)
        self._rows_of_the_round = ()
        asked = self._asked
        if asked is None or asked.sequences is not rows.sequences:
            return _draft(rows, {}, None, self._terms.vocab_size)
        started = time.perf_counter()
        law = self._collect(asked, 0.0 if self._link.is_late else self._timeout_s)
        self._link.numbers.wait_seconds += time.perf_counter() - started
        if self._asked is not None:
            self._link.numbers.num_timeouts += 1
        drafted = {slot: known.drafted or () for slot, known in asked.told}
        return _draft(rows, drafted, law, self._terms.vocab_size)

    def swap(self, first: int, second: int) -> None:
        """Both rows are known to change places; the actor is told with the next request."""
        known = self._known
        if known[first] is not None or known[second] is not None:
            self._swaps.append((first, second))
        known[first], known[second] = known[second], known[first]

    def reset(self, slot: int) -> None:
        """Send the row whole next time: the actor then begins it anew."""
        self._known[slot] = None

    def _news(self, slot: int, sequence: Sequence, limit: int) -> Progress | Missed | Newcomer:
        """What the actor must be told of a row."""
        known, length = self._known[slot], len(sequence)
        if known is None or known.sequence is not sequence or not known.is_known or length < known.length:
            return self._whole(slot, sequence, limit)
        new = sequence.token_ids[known.length :]
        if len(new) > MOST_MISSED:
            return self._whole(slot, sequence, limit)
        accepted = tuple(new[:-1])
        if new and known.drafted is not None and known.drafted[: len(accepted)] == accepted:
            return Progress(slot, limit, len(accepted), new[-1], length & 0xFF)
        return Missed(slot, limit, known.length, tuple(new))

    @staticmethod
    def _whole(slot: int, sequence: Sequence, limit: int) -> Newcomer:
        prompt, output = to_ids(sequence.prompt_token_ids), to_ids(sequence.output_token_ids)
        return Newcomer(slot, limit, prompt, output, sequence.params, sequence.noise_key)

    def _collect(self, asked: _Asked, timeout_s: float) -> Law | None:
        """Take the answer, if it comes in so many seconds, and the law in it; what was asked is then settled."""
        if asked.generation != self._link.generation:  # another lane found that the actor is lost
            self._asked = None
            return None
        if not ray.wait([asked.reference], timeout=timeout_s)[0]:
            # An engine that was cleared leaves requests behind that nobody has waited for.
            if timeout_s or time.monotonic() - asked.sent_at >= self._timeout_s:
                self._link.late(asked.reference, asked.generation)
                self._asked = replace(asked, is_overdue=True)
            return None
        self._asked = None
        try:
            data: bytes | None = ray.get(asked.reference)
            reply = None if data is None else decode_reply(data, len(asked.told), self._id_bytes)
        except (ray.exceptions.RayError, ValueError) as error:
            self._link.failed(asked.generation, error)
            return None
        if not asked.is_overdue:
            self._link.answered()
        if data is None or reply is None:  # it was restarted, or has forgotten this lane
            self._generation = -1
            return None
        self._link.numbers.num_bytes_received += len(data)
        if reply.law is not None:
            self._link.numbers.num_law_bytes += reply.law.num_bytes(self._id_bytes)
        return self._learn(asked, reply)

    def _learn(self, asked: _Asked, reply: Reply) -> Law | None:
        for (_, known), drafted in zip(asked.told, reply.drafts, strict=True):
            known.drafted, known.is_known = drafted, drafted is not None
        return reply.law


def _draft(rows: Rows, drafted: Mapping[int, Seq[int]], law: Law | None, vocab_size: int) -> Draft:
    """The draft of a round with these tokens in these slots; `law` has a row for each of them, in their order."""
    keys_B = rows.sampling.keys_B
    if rows.verification == "rejection" and law is None:  # tokens whose law nobody knows are of no use
        drafted = {}
    counts = [len(drafted.get(slot, ())) for slot in range(len(rows.sequences))]
    width = max(counts, default=0)
    tokens = [[*drafted.get(slot, ()), *[0] * (width - count)] for slot, count in enumerate(counts)]
    probs_BKV = None
    if law is not None and width:
        places = [(slot, step) for slot, token_ids in drafted.items() for step in range(len(token_ids))]
        rows_N, steps_N = torch.tensor(places, device=keys_B.device).T
        ids_NM, probs_NM = (torch.from_numpy(values).to(keys_B.device) for values in (law.ids_NM, law.probs_NM))
        probs_BKV = torch.zeros(len(counts), width, vocab_size, device=keys_B.device)
        probs_BKV[rows_N[:, None], steps_N[:, None], ids_NM] = probs_NM
    return Draft(
        torch.tensor(tokens, dtype=torch.int64, device=keys_B.device).reshape(len(counts), width),
        torch.tensor(counts, dtype=torch.int64, device=keys_B.device),
        probs_BKV,
        max_draft_tokens_B=tuple(counts),
    )
