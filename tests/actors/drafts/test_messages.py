"""What crosses between a generator and a draft actor: it comes out as it went in, and is small."""

import random

import numpy as np
import pytest

from actors.drafts.messages import (
    Law,
    Missed,
    Progress,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    id_bytes,
)

VOCABULARIES = [48, 65_536, 65_537, 151_936, 1 << 24, (1 << 24) + 1]


def _request(chance: random.Random, vocab_size: int, most: int) -> Request:
    def token() -> int:
        return chance.choice([0, vocab_size - 1, chance.randrange(vocab_size)])

    progress = tuple(
        Progress(
            chance.randrange(65_536), chance.randint(0, most), chance.randint(0, most), token(), chance.randrange(256)
        )
        for _ in range(chance.randint(0, 5))
    )
    missed = tuple(
        Missed(
            chance.randrange(65_536),
            chance.randint(0, most),
            chance.randrange(1 << 32),
            tuple(token() for _ in range(n)),
        )
        for n in (chance.randint(0, 9) for _ in range(chance.randint(0, 3)))
    )
    swaps = tuple((chance.randrange(65_536), chance.randrange(65_536)) for _ in range(chance.randint(0, 2)))
    return Request(swaps, progress, missed)


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("most", [7, 15, 16, 64])
def test_a_request_comes_out_as_it_went_in(vocab_size: int, most: int) -> None:
    chance = random.Random(most)
    for _ in range(50):
        request = _request(chance, vocab_size, most)
        assert decode_request(encode_request(request, id_bytes(vocab_size)), id_bytes(vocab_size)) == request


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_a_reply_comes_out_as_it_went_in(vocab_size: int) -> None:
    reply = Reply(((1, 2, vocab_size - 1), None, (), (0,)))
    assert decode_reply(encode_reply(reply, id_bytes(vocab_size)), 4, id_bytes(vocab_size)) == reply


def test_a_law_comes_out_bit_for_bit() -> None:
    probs = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    ids = np.arange(15).reshape(3, 5) * 10_000
    data = encode_reply(Reply(((4, 5), (6,)), Law(ids, probs)), 3)
    law = decode_reply(data, 2, 3).law
    assert law is not None
    assert law.ids_NM.tolist() == ids.tolist()
    assert law.probs_NM.tobytes() == probs.tobytes()


@pytest.mark.parametrize("num_rows", [1, 2, 32])
@pytest.mark.parametrize("vocab_size", [48, 65_536, 262_144])
def test_seven_drafted_tokens_take_at_most_32_bytes_a_row_there_and_back(vocab_size: int, num_rows: int) -> None:
    size = id_bytes(vocab_size)
    request = Request(progress=tuple(Progress(slot, 7, 7, vocab_size - 1, 255) for slot in range(num_rows)))
    reply = Reply(((vocab_size - 1,) * 7,) * num_rows)
    assert len(encode_request(request, size)) + len(encode_reply(reply, size)) <= 32 * num_rows


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_bytes_that_were_cut_are_refused(cut: int) -> None:
    request = Request(((1, 2),), (Progress(1, 2, 1, 7, 9),), (Missed(3, 1, 4, (5, 6)),))
    data = encode_request(request, 2)
    with pytest.raises(ValueError, match=r"no draft request|end before"):
        decode_request(data[:-cut], 2)
    with pytest.raises(ValueError, match=r"no drafts|end before"):
        decode_reply(encode_reply(Reply(((1, 2, 3),)), 2)[:-cut], 1, 2)
