"""Retries of storage operations after transient errors, and only after those."""

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

# Errors of a network mount, a socket or a disk that can be gone a moment later. Others are missing here because waiting
# does not help: no space, no permission, read-only, not found.
_TRANSIENT = {
    *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.EAGAIN, errno.ETIMEDOUT, errno.EPIPE),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
}

# Errors of pyarrow's object stores have no errno, only a text: "AWS Error SLOW_DOWN during ...", "HTTP status 503" if
# the response had no body, curl's code for a lost connection, and the status names of Google's library.
_TRANSIENT_TEXT = re.compile(
    r"HTTP status (408|429|5\d\d)|AWS Error (SLOW_DOWN|THROTTLING|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|"
    r"REQUEST_TIMEOUT|NETWORK_CONNECTION)|curlCode: (5|6|7|16|18|28|52|55|56|92)\b|"
    r"\b(UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED)\b|bytes were sent and"
)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to try. Waits double from `first_wait_s`; each is drawn below its bound (full jitter).

    pyarrow's S3 client itself tries a request for about 6 seconds, at a fixed pace; this covers longer failures.
    """

    max_tries: int = 8
    max_seconds: float = 180.0
    first_wait_s: float = 1.0
    max_wait_s: float = 30.0

    def call(self, what: str, operation: Callable[[], _Result]) -> _Result:
        """Return what `operation` returns; try again after a transient error.

        `operation` must be harmless to repeat, also after a try that succeeded and whose response was lost. Raises its
        OSError as it is if the error is not transient, and one that names `what` and the tries when they are used up.
        """
        started = time.monotonic()
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_transient),
            stop=tenacity.stop_after_attempt(self.max_tries) | tenacity.stop_before_delay(self.max_seconds),
            wait=tenacity.wait_random_exponential(multiplier=self.first_wait_s, max=self.max_wait_s),
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


def is_transient(error: BaseException) -> bool:
    """Tell whether the error can be gone when the operation is tried again."""
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _TRANSIENT
    return _TRANSIENT_TEXT.search(str(error)) is not None


_num_retries = 0  # of this process: locations are made everywhere, so they share one counter
_counting = threading.Lock()


def num_retries() -> int:
    """Return how often this process has tried a storage operation again, since it began."""
    return _num_retries


def _note_retry(what: str, state: tenacity.RetryCallState) -> None:
    global _num_retries
    assert state.outcome is not None
    with _counting:
        _num_retries += 1
    wait_s, error = round(state.upcoming_sleep, 2), str(state.outcome.exception())
    _log.warning(Event("storage retry", operation=what, tries=state.attempt_number, wait_s=wait_s, error=error))
