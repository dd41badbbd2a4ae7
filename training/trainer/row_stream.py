"""RowStream: the packed rows of a training, in an order that is a function of the texts and a seed alone.

Epoch follows epoch. In each, texts are shuffled in windows, since they come as a stream, and are then packed. How many
workers there are, and when a text arrives, changes nothing; so a training goes on at a place in the stream by reading
the epoch again up to there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from training.corpus.example import Example
from training.learners.packing import Document, PackedRow, pack

_WINDOW = 4096  # texts that are shuffled together


@dataclass(frozen=True)
class Place:
    """A place in the stream: an epoch, and how many of its rows were taken."""

    epoch: int = 0
    num_rows: int = 0


class RowStream:
    """An endless stream of packed rows."""

    def __init__(
        self,
        documents: Callable[[], Iterable[Document]],
        seq_len: int,
        max_len: int | None,
        seed: int,
        place: Place = Place(),  # frozen
    ) -> None:
        """Begin at a place; `documents` gives the same texts in the same order each time, at least one."""
        self._documents, self._seq_len, self._max_len, self._seed = documents, seq_len, max_len, seed
        self._place = place
        self._rows = self._epoch(place.epoch)
        for _ in islice(self._rows, place.num_rows):
            pass

    @property
    def place(self) -> Place:
        """The place of the next row."""
        return self._place

    def take(self, num_rows: int) -> list[PackedRow]:
        """Return the next rows."""
        taken: list[PackedRow] = []
        while len(taken) < num_rows:
            row = next(self._rows, None)
            if row is not None:
                taken.append(row)
                self._place = Place(self._place.epoch, self._place.num_rows + 1)
                continue
            if not self._place.num_rows:
                raise ValueError("the corpus has no text to train on any more; its files have changed or are gone")
            self._place = Place(self._place.epoch + 1)
            self._rows = self._epoch(self._place.epoch)
        return taken

    def _epoch(self, epoch: int) -> Iterator[PackedRow]:
        return pack(self._shuffled(epoch), self._seq_len, self._max_len)

    def _shuffled(self, epoch: int) -> Iterator[Document]:
        texts = iter(self._documents())
        number = 0
        while window := list(islice(texts, _WINDOW)):
            random.Random(f"{self._seed} {epoch} {number}").shuffle(window)
            yield from window
            number += 1


def documents_of(examples: Iterable[Example]) -> Iterator[Document]:
    """Yield what is packed of examples."""
    for example in examples:
        yield Document(example.prompt_token_ids, example.output_token_ids, example.params.temperature)
