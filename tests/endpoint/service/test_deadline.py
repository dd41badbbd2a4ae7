"""Deadlines: every wait ends with them."""

import asyncio
from collections.abc import AsyncIterator
from math import inf

import pytest

from endpoint.http.origin import Deadline, DeadlineError
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("endpoint.http.origin.time.monotonic", clock)
    return clock


def test_without_a_deadline_there_is_no_end():
    assert Deadline.after(None).left_s == inf


def test_the_deadline_counts_from_when_the_request_came(clock):
    clock.now = 7.0
    assert Deadline.after(10.0, started=3.0).left_s == 6.0


async def numbers(*, stays: bool) -> AsyncIterator[int]:
    yield 1
    yield 2
    if stays:
        await asyncio.Event().wait()


def test_a_stream_is_read_to_its_end_or_to_the_deadline():
    async def read(stays: bool, deadline: Deadline) -> list[int]:
        return [number async for number in deadline.until(numbers(stays=stays))]

    assert asyncio.run(read(False, Deadline.after(60.0))) == asyncio.run(read(False, Deadline())) == [1, 2]
    with pytest.raises(DeadlineError, match=r"not done in 0\.02 s"):
        asyncio.run(read(True, Deadline.after(0.02)))


def test_after_the_deadline_nothing_begins_and_other_timeouts_stay_timeouts(clock):
    async def begun(deadline: Deadline) -> None:
        async with deadline.enforced():
            raise TimeoutError("of somebody else")

    with pytest.raises(TimeoutError, match="of somebody else"):
        asyncio.run(begun(Deadline()))
    deadline = Deadline.after(1.0)
    clock.now = 1.0
    with pytest.raises(DeadlineError):
        asyncio.run(begun(deadline))
