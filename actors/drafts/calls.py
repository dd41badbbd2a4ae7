"""Calls of actors, as links and drafters wait for them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import ray


class Calls:
    """Calls under way, each known by its reference. A test passes calls of its own."""

    def arrived(self, references: Seq[Any], timeout_s: float) -> list[Any]:
        """Return the references whose results are there; wait until all are, but no longer than `timeout_s`."""
        return list(ray.wait(list(references), num_returns=len(references), timeout=timeout_s)[0])

    def result(self, reference: Any, timeout_s: float | None = None) -> Any:
        """Return the result of a call. Raises what the call raised, or GetTimeoutError after `timeout_s`."""
        return ray.get(reference, timeout=timeout_s)
