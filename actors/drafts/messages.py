"""Draft messages: what crosses between a generator and a draft actor, as bytes. Token ids go, distributions do not.

A row that writes along costs 7 bytes a round on its way there (vocabularies up to 65,536 tokens: 6) and 1 + 3 for
each drafted token on its way back (1 + 2). The draft actor knows what it drafted, so a round is told in two numbers:
how many of those tokens stood, and the token behind them. Where that does not say it (a draft that came too late, a
token that was decided again), the missing tokens are sent as they are; a row that is not known there is sent whole.

Under rejection the law that each token was drawn from comes with it: the ids and float32 probabilities that are not 0.

Shapes: N drafted tokens, M candidates of a law.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decoding.sampling_params import SamplingParams

MOST_MISSED = (1 << 16) - 1  # tokens of a row that can be told as missed
_IS_WIDE = 1  # counts take a byte each; else they share one
_HAS_MORE = 2  # swaps and missed tokens follow
_NARROW = 15  # the largest count that shares a byte
_UNKNOWN = 255  # in place of a count of drafted tokens: send this row whole
_COUNTS = struct.Struct("<HHH")
_MISSED = struct.Struct("<HBIH")
_SWAP = struct.Struct("<HH")
Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Progress:
    """A row of which the actor's last draft says most: its first tokens stood, then came one more."""

    slot: int
    limit: int  # tokens to draft now, at most
    num_accepted: int
    next_token: int
    length_byte: int  # the low byte of the row's length now: tells whether both know the same row


@dataclass(frozen=True)
class Missed:
    """A row with tokens that the actor has not seen; none is fine, too."""

    slot: int
    limit: int
    start: int  # the row's length before them, as the actor should know it
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Newcomer:
    """A row as a whole."""

    slot: int
    limit: int
    prompt_ids: Ids
    output_ids: Ids
    params: SamplingParams
    noise_key: int

    @property
    def num_bytes(self) -> int:
        """Of its tokens."""
        return int(self.prompt_ids.nbytes + self.output_ids.nbytes)


@dataclass(frozen=True)
class Request:
    """What a generator tells and asks in a round, less the newcomers. Slots are those after the swaps, in order."""

    swaps: tuple[tuple[int, int], ...] = ()
    progress: tuple[Progress, ...] = ()
    missed: tuple[Missed, ...] = ()


@dataclass(frozen=True)
class Law:
    """The laws of N drafted tokens: what is not among their M candidates has probability 0."""

    ids_NM: npt.NDArray[np.int64]
    probs_NM: npt.NDArray[np.float32]

    def num_bytes(self, num_id_bytes: int) -> int:
        """Of a reply, for this law."""
        return 4 + self.ids_NM.size * (num_id_bytes + 4)


@dataclass(frozen=True)
class Reply:
    """For each row of a request (progress, missed, newcomers, as they stood there) its draft, or None: unknown row."""

    drafts: tuple[tuple[int, ...] | None, ...]
    law: Law | None = None  # of all drafted tokens, one row behind the other; None: nobody needs it


def id_bytes(vocab_size: int) -> int:
    """Bytes that a token id takes."""
    return 2 if vocab_size <= 1 << 16 else 3 if vocab_size <= 1 << 24 else 4


def encode_request(request: Request, num_id_bytes: int) -> bytes:
    """The request as bytes."""
    progress = request.progress
    is_wide = any(max(row.limit, row.num_accepted) > _NARROW for row in progress)
    has_more = bool(request.swaps or request.missed)
    parts = [bytes([_IS_WIDE * is_wide | _HAS_MORE * has_more])]
    if has_more:
        parts.append(_COUNTS.pack(len(request.swaps), len(progress), len(request.missed)))
        parts += [_SWAP.pack(*swap) for swap in request.swaps]
        for missed in request.missed:
            parts.append(_MISSED.pack(missed.slot, missed.limit, missed.start, len(missed.token_ids)))
            parts.append(_pack_ids(missed.token_ids, num_id_bytes))
    for row in progress:
        counts = (row.num_accepted, row.limit) if is_wide else (row.num_accepted << 4 | row.limit,)
        parts.append(row.slot.to_bytes(2, "little") + bytes(counts))
        parts.append(row.next_token.to_bytes(num_id_bytes, "little") + bytes([row.length_byte]))
    return b"".join(parts)


def decode_request(data: bytes, num_id_bytes: int) -> Request:
    """What `encode_request` made bytes of. Raises ValueError for other bytes."""
    try:
        return _decode_request(data, num_id_bytes)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{len(data)} bytes are no draft request: {error}") from error


def _decode_request(data: bytes, num_id_bytes: int) -> Request:
    is_wide, place = data[0] & _IS_WIDE, 1
    swaps: list[tuple[int, int]] = []
    missed: list[Missed] = []
    num_progress = None
    if data[0] & _HAS_MORE:
        num_swaps, num_progress, num_missed = _COUNTS.unpack_from(data, place)
        place += _COUNTS.size
        for _ in range(num_swaps):
            first, second = _SWAP.unpack_from(data, place)
            swaps.append((first, second))
            place += _SWAP.size
        for _ in range(num_missed):
            slot, limit, start, count = _MISSED.unpack_from(data, place)
            place += _MISSED.size
            missed.append(Missed(slot, limit, start, _unpack_ids(data, place, count, num_id_bytes)))
            place += count * num_id_bytes
    size = 4 + num_id_bytes + bool(is_wide)
    rest = len(data) - place
    if rest % size or (num_progress is not None and rest != num_progress * size):
        raise ValueError(f"{len(data)} bytes are no draft request: {rest} of them are not rows of {size}")
    progress = []
    for first in range(place, len(data), size):
        row = data[first : first + size]
        num_accepted, limit = (row[2], row[3]) if is_wide else (row[2] >> 4, row[2] & _NARROW)
        next_token = int.from_bytes(row[-1 - num_id_bytes : -1], "little")
        progress.append(Progress(int.from_bytes(row[:2], "little"), limit, num_accepted, next_token, row[-1]))
    return Request(tuple(swaps), tuple(progress), tuple(missed))


def encode_reply(reply: Reply, num_id_bytes: int) -> bytes:
    """The reply as bytes."""
    parts = []
    for draft in reply.drafts:
        parts.append(bytes([_UNKNOWN if draft is None else len(draft)]))
        parts.append(_pack_ids(draft or (), num_id_bytes))
    if reply.law is not None:
        parts.append(reply.law.ids_NM.shape[1].to_bytes(4, "little"))
        parts.append(_pack_ids(reply.law.ids_NM.ravel().tolist(), num_id_bytes))
        parts.append(reply.law.probs_NM.astype("<f4").tobytes())
    return b"".join(parts)


def decode_reply(data: bytes, num_rows: int, num_id_bytes: int) -> Reply:
    """The drafts of so many rows. Raises ValueError for bytes that are no such reply."""
    drafts: list[tuple[int, ...] | None] = []
    place = num_tokens = 0
    for _ in range(num_rows):
        if place >= len(data):
            raise ValueError(f"{len(data)} bytes are no drafts of {num_rows} rows")
        count = data[place]
        place += 1
        if count == _UNKNOWN:
            drafts.append(None)
            continue
        drafts.append(_unpack_ids(data, place, count, num_id_bytes))
        place += count * num_id_bytes
        num_tokens += count
    law = None
    if place < len(data):
        num_candidates = int.from_bytes(data[place : place + 4], "little")
        place += 4
        shape, count = (num_tokens, num_candidates), num_tokens * num_candidates
        ids = np.array(_unpack_ids(data, place, count, num_id_bytes), dtype=np.int64)
        place += count * num_id_bytes
        if len(data) - place != 4 * count:
            raise ValueError(f"{len(data)} bytes are no drafts of {num_rows} rows with their laws")
        law = Law(ids.reshape(shape), np.frombuffer(data, "<f4", count, place).astype(np.float32).reshape(shape))
    return Reply(tuple(drafts), law)


def to_ids(token_ids: Seq[int]) -> Ids:
    """Token ids as they travel with a newcomer."""
    return np.array(token_ids, dtype=np.uint32)


def _pack_ids(token_ids: Seq[int], num_id_bytes: int) -> bytes:
    ids = np.array(token_ids, dtype="<u4")
    return ids.view(np.uint8).reshape(-1, 4)[:, :num_id_bytes].tobytes()


def _unpack_ids(data: bytes, place: int, count: int, num_id_bytes: int) -> tuple[int, ...]:
    end = place + count * num_id_bytes
    if end > len(data):
        raise ValueError(f"{len(data)} bytes end before {count} token ids do")
    padded = np.zeros((count, 4), dtype=np.uint8)
    padded[:, :num_id_bytes] = np.frombuffer(data, np.uint8, count * num_id_bytes, place).reshape(count, num_id_bytes)
    return tuple(padded.view("<u4")[:, 0].tolist())
