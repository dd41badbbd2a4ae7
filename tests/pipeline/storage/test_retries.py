"""An operation is repeated, a bounded number of times, after transient errors only."""

import errno
import os
import time

import pytest

from pipeline.storage.retries import RetryPolicy, is_transient, num_retries

QUICK = RetryPolicy(max_tries=4, first_wait_s=0.001, max_wait_s=0.002)


class Flaky:
    """An operation that raises its errors one by one and then returns how often it was called."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.num_calls = 0

    def __call__(self) -> int:
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.num_calls


def test_an_operation_is_repeated_after_transient_errors_until_it_succeeds():
    stale = OSError(errno.ESTALE, "Stale file handle")
    slow = OSError("When listing objects: AWS Error SLOW_DOWN during ListObjectsV2 operation: Please reduce your rate")
    assert QUICK.call("listing", Flaky(stale, slow)) == 3


def test_after_the_last_try_the_error_says_what_was_tried_and_how_often():
    flaky = Flaky(*[OSError(errno.ETIMEDOUT, "timed out")] * 9)
    with pytest.raises(TimeoutError, match=r"writing out/x failed 4 times in 0\.\d s; the last time: .*timed out"):
        QUICK.call("writing out/x", flaky)
    assert flaky.num_calls == 4


def test_tries_also_end_when_the_time_is_up():
    started = time.monotonic()
    policy = RetryPolicy(max_tries=1000, max_seconds=0.1, first_wait_s=0.02, max_wait_s=0.02)
    with pytest.raises(OSError, match=r"failed .* times"):
        policy.call("reading", Flaky(*[OSError(errno.EIO, "i/o")] * 1000))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EDQUOT, errno.EPERM])
def test_an_error_that_is_not_transient_is_raised_at_once_as_it_is(number):
    flaky = Flaky(OSError(number, os.strerror(number)))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        QUICK.call("writing", flaky)
    assert flaky.num_calls == 1
    assert caught.value.errno == number


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
        "AWS Error NO_SUCH_BUCKET during CreateMultipartUpload operation: The specified bucket does not exist",
        "Unexpected end of stream",
    ],
)
def test_a_refusal_by_a_store_and_a_damaged_file_are_not_transient(text):
    assert not is_transient(OSError(text))
    assert not is_transient(ValueError("AWS Error SLOW_DOWN"))


def test_each_retry_is_logged_and_counted_but_not_the_first_try(caplog):
    before = num_retries()
    QUICK.call("writing out/x", Flaky(*[OSError(errno.ETIMEDOUT, "timed out")] * 2))
    QUICK.call("writing out/y", Flaky())
    assert num_retries() - before == 2
    assert [message.rpartition(" wait_s=")[0] for message in caplog.messages] == [
        'storage retry operation="writing out/x" tries=1',
        'storage retry operation="writing out/x" tries=2',
    ]
    assert all(message.endswith('error="[Errno 110] timed out"') for message in caplog.messages)
