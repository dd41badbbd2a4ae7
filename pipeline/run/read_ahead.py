"""Reading ahead: a store answers late, so a few answers are awaited at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def read_ahead(read: Callable[[_Item], _Result], items: Iterable[_Item], num_at_once: int = 4) -> Iterator[_Result]:
    """What `read` makes of each item, in order; threads call it for up to `num_at_once` items ahead.

    Never more results than that are in memory. What `read` raises is raised here, in its turn.
    """
    with ThreadPoolExecutor(num_at_once, thread_name_prefix="read-ahead") as pool:
        waiting: deque[Future[_Result]] = deque()
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) == num_at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
