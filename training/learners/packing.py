"""Packing: documents of all lengths become rows of one length, several documents in a row; and the Learner of them.

Shapes: B rows, T tokens of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch
from torch import nn

_MOST_OPEN_ROWS = 16  # that may still take a document: more waste less, and keep documents waiting for longer


@dataclass(frozen=True)
class Document:
    """A prompt and the output that the target wrote after it; only the output is taught."""

    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    temperature: float = 1.0  # that the output was drawn at


@dataclass
class PackedRow:
    """The documents of a row, one behind the other, and how many tokens they have."""

    documents: list[Document] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, document: Document, num_tokens: int) -> None:
        """Put `num_tokens` of a document behind the others; the end of a longer one is cut off."""
        num_prompt = min(len(document.prompt_token_ids), num_tokens)
        prompt, output = document.prompt_token_ids[:num_prompt], document.output_token_ids[: num_tokens - num_prompt]
        self.documents.append(Document(prompt, output, document.temperature))
        self.num_tokens += num_tokens


@dataclass(frozen=True)
class PackedRows:
    """Rows as tensors, as long as the longest of them.

    A position is taught if what it predicts, the token behind it, is an output token of its own document. Padding on
    the right is a document of its own, of which nothing is taught.
    """

    token_ids_BT: torch.Tensor
    documents_BT: torch.Tensor  # numbers them in each row, from 0 on
    positions_BT: torch.Tensor  # in the document
    is_taught_BT: torch.Tensor
    temperatures_BT: torch.Tensor

    @classmethod
    def of(cls, rows: list[PackedRow], device: torch.device | None = None) -> PackedRows:
        """Return these rows, at least one, on a device."""
        length = max(row.num_tokens for row in rows)
        columns: tuple[list[list[float]], ...] = ([], [], [], [], [])
        for row in rows:
            for column in columns:
                column.append([])
            tokens, documents, positions, taught, temperatures = (column[-1] for column in columns)
            num_missing = length - row.num_tokens
            padding = [Document((0,) * num_missing, ())] if num_missing else []
            for number, document in enumerate([*row.documents, *padding]):
                num_prompt, num_output = len(document.prompt_token_ids), len(document.output_token_ids)
                num_tokens = num_prompt + num_output
                tokens += [*document.prompt_token_ids, *document.output_token_ids]
                documents += [number] * num_tokens
                positions += range(num_tokens)
                # The first token of a text without a prompt is predicted from nothing, so that it cannot be taught.
                first = max(num_prompt, 1)
                taught += [0] * (first - 1) + [1] * (num_tokens - first) + [0]
                temperatures += [document.temperature] * num_tokens
        kinds = (torch.int64, torch.int64, torch.int64, torch.bool, torch.float32)
        tensors = (torch.tensor(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True))
        return cls(*(tensor.to(device) for tensor in tensors))

    def apart(self) -> PackedRows:
        """Return the same documents, each from the beginning of a row of its own, in their order."""
        num_rows, length = self.documents_BT.shape
        own_BT = self.documents_BT + length * torch.arange(num_rows, device=self.documents_BT.device)[:, None]
        numbers, rows_BT = torch.unique(own_BT, return_inverse=True)
        shape = len(numbers), int(self.positions_BT.max()) + 1

        def moved(given_BT: torch.Tensor) -> torch.Tensor:
            return given_BT.new_zeros(shape).index_put((rows_BT, self.positions_BT), given_BT)

        is_padding_DT = ~moved(torch.ones_like(self.is_taught_BT))
        return PackedRows(
            moved(self.token_ids_BT),
            is_padding_DT.long(),
            torch.arange(shape[1], device=own_BT.device).expand(shape),  # padding goes on: nothing before it sees it
            moved(self.is_taught_BT),
            moved(self.temperatures_BT),
        )


def pack(documents: Iterable[Document], seq_len: int, max_len: int | None = None) -> Iterator[PackedRow]:
    """Yield rows of at most `seq_len` tokens that hold all documents, each whole or cut off at its end.

    No document is longer than `max_len`, by default a row. Each goes into the first open row that has room for it, and
    the fullest row is handed out where none has, so that the rows are a function of the documents and their order.
    """
    longest = seq_len if max_len is None else min(seq_len, max_len)
    opened: list[PackedRow] = []
    for document in documents:
        num_tokens = min(len(document.prompt_token_ids) + len(document.output_token_ids), longest)
        row = next((row for row in opened if row.num_tokens + num_tokens <= seq_len), None)
        if row is None:
            if len(opened) == _MOST_OPEN_ROWS:
                fullest = max(range(len(opened)), key=lambda index: opened[index].num_tokens)
                yield opened.pop(fullest)
            row = PackedRow()
            opened.append(row)
        row.add(document, num_tokens)
    yield from opened


@dataclass(frozen=True)
class StepResult:
    """Sums over the tokens of some rows; sums of several steps and workers add up."""

    loss: torch.Tensor  # over all predictions, with its gradient
    num_agreed: torch.Tensor  # tokens whose most likely next token is the target's
    outside: torch.Tensor  # the target's probability of tokens that the draft does not know


class Learner(Protocol):
    """A draft that learns from rows of text, beside its target, which is frozen."""

    @property
    def network(self) -> nn.Module:
        """What is trained: its parameters that want a gradient."""

    @property
    def max_len(self) -> int | None:
        """The longest document that target and draft can read; None: any."""

    def num_predictions(self, rows: PackedRows) -> int:
        """Return how many predictions of these rows the loss is summed over."""

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss on some rows; `progress` goes from 0 to 1 over the training."""

    def save(self, folder: str) -> None:
        """Write the draft into a new folder, as it is loaded for drafting."""


_WINDOW = 4096  # texts that are shuffled together


@dataclass(frozen=True)
class Place:
    """A place in the stream: an epoch, and how many of its rows were taken."""

    epoch: int = 0
    num_rows: int = 0


class RowStream:
    """An endless stream of packed rows, in an order that is a function of the texts and a seed alone.

    Epoch follows epoch. In each, texts are shuffled in windows, since they come as a stream, and are then packed. How
    many workers there are, and when a text arrives, changes nothing; so a training goes on at a place in the stream by
    reading the epoch again up to there.
    """

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
