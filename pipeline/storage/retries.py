"""Retries: a storage operation is tried again when what made it fail can pass, and only then."""

from __future__ import annotations

import errno
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from pipeline.logs import Event

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

# What a network mount, a socket or a tired disk says, and unsays a moment later. Not here: no space, no permission,
# read-only, not found, which waiting does not mend.
_PASSING = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.EREMOTEIO,
    errno.EAGAIN,
}

# pyarrow's object stores have no errno, only a text: "AWS Error SLOW_DOWN during ...", "HTTP status 503" where the
# answer had no body, curl's words for a lost connection, and the status words of Google's library.
_PASSING_TEXT = re.compile(
    r"HTTP status (408|429|5\d\d)|AWS Error (SLOW_DOWN|THROTTLING|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|"
    r"REQUEST_TIMEOUT|NETWORK_CONNECTION)|curlCode: (5|6|7|16|18|28|52|55|56|92)\b|"
    r"\b(UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED)\b|bytes were sent and"
)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long. Waits double from `first_wait_s`, each drawn at random below its bound (full jitter).

    pyarrow's S3 client tries a request for about 6 seconds by itself, at a fixed pace; this is for what lasts longer.
    """

    max_tries: int = 8
    max_seconds: float = 180.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0

    def call(self, what: str, operation: Callable[[], _Result]) -> _Result:
        """What `operation` returns, tried again while it fails by what can pass.

        `operation` must be harmless to repeat, also after a try that did its work and failed to say so. Raises its
        OSError as it is where waiting does not help, and one that names `what` and the tries when they are used up.
        """
        started = time.monotonic()
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_passing),
            stop=tenacity.stop_after_attempt(self.max_tries) | tenacity.stop_before_delay(self.max_seconds),
            wait=tenacity.wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s),
            before_sleep=lambda state: _note_retry(what, state),
        )
        try:
            return attempts(operation)
        except tenacity.RetryError as failed:
            error = failed.last_attempt.exception()
            assert isinstance(error, OSError)
            text = (
                f"{what} failed {failed.last_attempt.attempt_number} times in {time.monotonic() - started:.1f} s; "
                f"the last time: {error}"
            )
            raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error


def is_passing(error: BaseException) -> bool:
    """Whether the error can be gone when the operation is tried again."""
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _PASSING
    return _PASSING_TEXT.search(str(error)) is not None


class _Tally:
    """A count that several threads add to."""

    def __init__(self) -> None:
        self.value = 0
        self._adding = threading.Lock()

    def add_one(self) -> None:
        with self._adding:
            self.value += 1


_retries = _Tally()  # of the process, as a metric is: locations are made everywhere, and nobody hands them a counter


def num_retries() -> int:
    """How often this process has tried a storage operation again, since it began."""
    return _retries.value


def _note_retry(what: str, state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    _retries.add_one()
    _log.warning(
        Event(
            "storage retry",
            operation=what,
            tries=state.attempt_number,
            wait_s=round(state.upcoming_sleep, 2),
            error=str(state.outcome.exception()),
        )
    )
