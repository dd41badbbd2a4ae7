"""Journal: what the gate keeps of one stream, so that another ingress can go on with it."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256

from starlette.types import Message

from endpoint.http.retelling import Origin

ROOM_BYTES = 128 * 2**20  # for all streams of one proxy, with their requests


class RetoldError(RuntimeError):
    """An ingress that was to go on with a stream does not begin as the one before it."""


class Room:
    """The bytes that all journals together may take."""

    def __init__(self, max_bytes: int = ROOM_BYTES) -> None:
        self._left = max_bytes

    def take(self, num_bytes: int) -> bool:
        """Take bytes, if there are as many."""
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        """Give bytes back."""
        self._left += num_bytes


class Journal:
    """The deltas of one stream, and how much of its text the client has."""

    def __init__(self, room: Room) -> None:
        self._room, self._origin, self._num_kept = room, Origin(keeps=True), 0
        self.num_tried = 0  # ingresses that were lost or had no engines
        self.tells_other_words = False  # the ingress that was to go on
        self._began_at = time.monotonic()
        self._told: list[bytes] | None = []  # None: there is no room, or the stream has gone on already
        self.num_sent, self._sent = 0, sha256()  # bytes of the stream that the client has
        self._num_again, self._again = 0, sha256()  # of a stream that is told again, until it is where it broke off
        self.is_resuming = False

    @property
    def origin(self) -> Origin:
        """What an ingress that is asked now is given."""
        told = tuple(self._told or ()) if self.is_resuming else ()
        return replace(
            self._origin, told=told, keeps=not self.is_resuming, attempt=self.num_tried + 1, used_s=self.used_s
        )

    @property
    def used_s(self) -> float:
        """Seconds of the request's time that ingresses which were tried have used."""
        return time.monotonic() - self._began_at if self.num_tried else 0.0

    @property
    def is_closed(self) -> bool:
        """Whether no other ingress can go on any more, so that nothing need be kept for it."""
        return self._told is None

    @property
    def has_begun(self) -> bool:
        """Whether the client has something of the stream."""
        return self.num_sent > 0

    @property
    def can_resume(self) -> bool:
        """Whether another ingress could go on: once, since a request may be what ends them."""
        return bool(self._told) and not self.is_resuming

    def keep(self, num_bytes: int) -> bool:
        """Make room for something else that going on needs; without it the stream cannot."""
        if self._told is None or not self._room.take(num_bytes):
            self.close()
            return False
        self._num_kept += num_bytes
        return True

    def tell(self, message: Message) -> None:
        """Take what the ingress tells."""
        if self._told is not None and not self.is_resuming and self.keep(len(message["deltas"])):
            self._told.append(message["deltas"])

    def resume(self) -> None:
        """Expect the stream from its beginning, by another ingress."""
        self.is_resuming = True
        self._num_again, self._again = 0, sha256()

    def unsent(self, body: bytes, *, is_last: bool) -> bytes:
        """Return the part of a stream's next bytes that the client does not have, and count it as sent.

        Raises RetoldError if the other bytes are not those that the client has, or are fewer and the last.
        """
        if self.is_resuming and self._num_again < self.num_sent:
            num_known = min(len(body), self.num_sent - self._num_again)
            self._num_again += num_known
            self._again.update(body[:num_known])
            is_behind = self._num_again < self.num_sent
            if is_last if is_behind else self._again.digest() != self._sent.digest():
                self.tells_other_words = True
                raise RetoldError("another ingress tells a stream in other words")
            if not is_behind:  # a stream goes on only once
                self.close()
            body = body[num_known:]
        self.num_sent += len(body)
        if self.is_resuming:
            self._num_again += len(body)
        elif self._told is not None:
            self._sent.update(body)
        return body

    def close(self) -> None:
        """Keep nothing any more."""
        self._room.give(self._num_kept)
        self._told, self._num_kept = None, 0
