"""DraftInUse: the draft of an engine, which another one may replace, and which comes back if that one does badly.

The text does not depend on the draft, so a bad one costs time alone. It is told from its predecessor by the share of
drafted tokens that are accepted, in as many rounds of both.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from decoding.fused.live_weights import LiveWeights
from decoding.pace.acceptance import ROUNDS, RecentDrafts
from decoding.sampling.rows import Rule

_FEWEST_BEFORE = 50  # rounds of the draft before, without which nothing can be compared
_LEAST_SHARE = 0.5  # of the acceptance before


@dataclass(frozen=True)
class DraftRollback:
    """A draft that was taken back: its version, and the shares of drafted tokens accepted before it and with it."""

    version: int
    before: float
    after: float


@dataclass(frozen=True)
class _Predecessor:
    """The draft before, to which an engine goes back."""

    version: int
    weights: Mapping[str, torch.Tensor] | None  # on the CPU; None: they are in another process
    acceptance: float  # accepted / drafted


class DraftInUse:
    """The version of a draft, and its predecessor while it is on trial."""

    def __init__(
        self,
        rule: Rule,
        recent_drafts: Callable[[], Iterable[RecentDrafts]],
        live_weights: Callable[[], LiveWeights],
        forget: Callable[[], None],
    ) -> None:
        """Begin with the draft that an engine was loaded with.

        `recent_drafts` are those of its lanes. `live_weights` raises ValueError where this process has none. `forget`
        drops what was computed and learned with a draft whose weights are replaced.
        """
        self.version = 0
        self._rule = rule
        self._recent_drafts, self._live_weights, self._forget = recent_drafts, live_weights, forget
        self._predecessor: _Predecessor | None = None
        self._rollbacks: deque[DraftRollback] = deque()  # that were not taken yet

    def replace(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Go on with other weights. Raises ValueError, in one line, where they do not fit; nothing has changed then."""
        self._refuse_dependent_text()
        live = self._live_weights()
        try:
            ready = live.check(weights)
        except ValueError as error:
            raise ValueError(f"the new draft {error}") from error
        self._begin_trial(version, live)
        live.put(ready)
        self._go_on_with(version)

    def was_replaced(self, version: int) -> None:
        """Learn that the draft in another process has other weights now."""
        self._refuse_dependent_text()
        self._begin_trial(version, None)
        self._go_on_with(version)

    def judge(self) -> None:
        """End the trial of the draft in use as soon as it can be told, and take it back if it fails."""
        before = self._predecessor
        after = acceptance_of(self._recent_drafts(), ROUNDS) if before is not None else None
        if before is None or after is None:
            return
        self._predecessor = None
        if after >= _LEAST_SHARE * before.acceptance:
            return
        self._rollbacks.append(DraftRollback(self.version, before.acceptance, after))
        if before.weights is not None:  # else another process has them, whose caller learns of this
            live = self._live_weights()
            live.put(live.check(before.weights))
            self._go_on_with(before.version)

    def take_rollback(self) -> DraftRollback | None:
        """Return a draft that was taken back, each once; None if there is none. Any thread may ask."""
        return self._rollbacks.popleft() if self._rollbacks else None

    def _refuse_dependent_text(self) -> None:
        if self._rule.text_depends_on_draft:
            raise ValueError(
                f"engine.verification is {self._rule.name!r}, under which the text depends on the draft, so "
                "the draft stays; only under 'coupled' it may be replaced"
            )

    def _begin_trial(self, version: int, live: LiveWeights | None) -> None:
        """Keep the draft in use until the next one has proved itself; an earlier one on trial is no draft to keep."""
        if self._predecessor is not None:
            if self._predecessor.version == version:
                self._predecessor = None
            return
        acceptance = acceptance_of(self._recent_drafts(), _FEWEST_BEFORE)
        if acceptance is not None:
            weights = None if live is None else live.snapshot()
            self._predecessor = _Predecessor(self.version, weights, acceptance)

    def _go_on_with(self, version: int) -> None:
        self._forget()
        self.version = version


def acceptance_of(drafts: Iterable[RecentDrafts], fewest_rounds: int) -> float | None:
    """Return accepted / drafted over the lanes of an engine; None if they had fewer rounds than asked for."""
    lanes = list(drafts)
    if sum(map(len, lanes)) < fewest_rounds:
        return None
    totals = [each.totals() for each in lanes]
    return sum(accepted for _, accepted in totals) / sum(drafted for drafted, _ in totals)
