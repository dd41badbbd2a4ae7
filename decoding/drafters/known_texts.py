"""Known texts: what a lookup has learned, apart for each scope and in bounded memory.

All rows of a job have one scope; an endpoint has one for each API key. Where all scopes together hold too much, the one
that was used least recently is forgotten as a whole.
"""

from collections import OrderedDict

from decoding.drafters.calibration import Calibration
from decoding.drafters.contexts import MAX_ENTRIES, Continuations

_MAX_ENTRIES_OF_ALL = 4 * MAX_ENTRIES  # counts of all scopes; at most about 140 MB


class KnownTexts:
    """What was learned of the texts of one scope."""

    def __init__(self) -> None:
        self.continuations = Continuations()
        self.calibration = Calibration()
        self.num_counted = 0  # entries, when they were last counted


class KnownByScope:
    """The known texts of each scope."""

    def __init__(self, max_entries: int = _MAX_ENTRIES_OF_ALL) -> None:
        """Keep at most `max_entries` counts, or those of one scope, which has a limit of its own."""
        self._max_entries, self._num_entries = max_entries, 0
        self._known = OrderedDict[str, KnownTexts]()  # the most recently used at the end

    def of(self, scope: str) -> KnownTexts:
        """Return what is known in a scope, which then counts as the most recently used."""
        known = self._known.get(scope)
        if known is None:
            known = self._known[scope] = KnownTexts()
        else:
            self._known.move_to_end(scope)
        return known

    def count(self, known: KnownTexts) -> None:
        """Count what the most recently used scope has learned, and forget others while there is too much of all."""
        num_entries = known.continuations.num_entries
        self._num_entries += num_entries - known.num_counted
        known.num_counted = num_entries
        while self._num_entries > self._max_entries and len(self._known) > 1:
            _, forgotten = self._known.popitem(last=False)
            self._num_entries -= forgotten.num_counted
