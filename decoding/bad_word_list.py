"""BadWordList: the bad words of some sampling parameters as arrays, made once for all rows that have the same words.

Shapes: W words, T tokens of all of them.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class BadWordList:
    """Words as token ids, one behind the other. Equal words have one list, which lives as long as its rows."""

    words: Words
    token_ids_T: np.ndarray[Any, np.dtype[np.int32]]
    ends_W: np.ndarray[Any, np.dtype[np.int64]]  # where in T each word has ended
    num_before_W: np.ndarray[Any, np.dtype[np.int64]]  # tokens before a word's last

    @classmethod
    def of(cls, words: Seq[tuple[int, ...]]) -> "BadWordList":
        """Return the list of these words, none of which is empty."""
        words = tuple(words)
        found = _KNOWN.get(words)
        if found is None:
            lengths_W = np.fromiter(map(len, words), np.int64, len(words))
            token_ids_T = np.fromiter(chain.from_iterable(words), np.int32, int(lengths_W.sum()))
            found = _KNOWN[words] = cls(words, token_ids_T, lengths_W.cumsum(), lengths_W - 1)
        return found

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.words)

    def outside(self, vocab_size: int) -> list[int]:
        """Return the token ids that a vocabulary does not have, in their order."""
        ids_T = self.token_ids_T
        found: list[int] = ids_T[(ids_T < 0) | (ids_T >= vocab_size)].tolist()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the words alone, so that equal lists are one object in another process, too."""
        # A function of the module: cloudpickle would send a class method by its code, and what the code holds.
        return _received, (self.words,)


_KNOWN: WeakValueDictionary[Words, BadWordList] = WeakValueDictionary()


def _received(words: Words) -> BadWordList:
    return BadWordList.of(words)
