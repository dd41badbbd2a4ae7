"""The rows of a training are a function of texts and seed, and a stream goes on where another one was."""

import pytest

from training.learners.packing import Document, Place, RowStream

TEXTS = [Document((index, 1), tuple(range(2 + index % 5))) for index in range(40)]


def _stream(seed: int = 0, place: Place | None = None) -> RowStream:
    return RowStream(lambda: TEXTS, 16, None, seed, place or Place())


def _documents(rows: list) -> list[Document]:
    return [document for row in rows for document in row.documents]


def test_an_epoch_holds_every_text_once_in_another_order_than_the_next() -> None:
    stream = _stream()
    epochs: dict[int, list[Document]] = {}
    while stream.place.epoch < 2:
        before = stream.place
        rows = stream.take(1)
        # The first row of an epoch is taken at the end of the one before.
        epoch = stream.place.epoch if stream.place.num_rows == 1 else before.epoch
        epochs.setdefault(epoch, []).extend(_documents(rows))
    for epoch in (0, 1):
        assert sorted(epochs[epoch], key=repr) == sorted(TEXTS, key=repr)
    assert epochs[0] != epochs[1]


def test_the_seed_decides_the_order() -> None:
    first, same, other = (_stream(seed).take(6) for seed in (3, 3, 4))
    assert first == same
    assert first != other


@pytest.mark.parametrize("num_before", [1, 5, 13, 30, 31])
def test_a_stream_goes_on_at_a_place(num_before: int) -> None:
    whole, first = _stream(), _stream()
    whole.take(num_before)
    first.take(num_before)
    assert _stream(place=first.place).take(20) == whole.take(20)


def test_texts_that_are_gone_are_an_error() -> None:
    with pytest.raises(ValueError, match="no text to train on any more"):
        RowStream(lambda: [], 16, None, 0).take(1)
