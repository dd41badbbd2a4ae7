"""Draft messages are read as they were written, and a row and round of one is small."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from ray import cloudpickle

from actors.drafts.mirror import Distributions, DraftReply, DraftRequest, RowOrigin, RowUpdate
from decoding import SamplingParams

ORIGIN = RowOrigin(2, SamplingParams(temperature=0.5), 7)


@pytest.mark.parametrize("seed", range(20))
def test_the_updates_of_a_request_are_read_as_they_were_written(seed: int) -> None:
    chance = random.Random(seed)
    updates = [
        RowUpdate(
            slot,
            chance.randrange(9),
            chance.randrange(1 << 31),
            [chance.randrange(1 << 31) for _ in range(chance.choice([0, 1, 5, 70_000]))],
            chance.choice([None, ORIGIN]),
        )
        for slot in range(chance.randrange(5))
    ]
    swaps = [(0, 1), (70_000, 2)][: chance.randrange(3)]
    request = pickle.loads(pickle.dumps(DraftRequest(swaps, updates)))
    assert list(request.updates) == updates
    assert [tuple(swap) for swap in request.swaps] == swaps
    new_tokens = sum(len(update.token_ids) for update in updates if update.origin)
    assert request.num_new_row_bytes == 4 * new_tokens


def test_a_row_with_bad_words_that_was_already_drafted_for_is_sent_by_cloudpickle_as_ray_sends_it() -> None:
    params = SamplingParams(bad_words=[[1, 2], [3]])
    kept = params.bad_word_list  # made before the row is sent
    request = cloudpickle.loads(cloudpickle.dumps(DraftRequest([], [RowUpdate(0, 4, 0, [5], RowOrigin(1, params, 7))])))
    (update,) = request.updates
    assert update.origin.params == params
    assert update.origin.params.bad_word_list is kept


@pytest.mark.parametrize("drafts", [[], [None], [[1, 2, 1 << 30], None, [], [0]], [[]]])
def test_the_drafts_of_a_reply_are_read_as_they_were_written(drafts: list[list[int] | None]) -> None:
    reply = pickle.loads(pickle.dumps(DraftReply(drafts)))
    assert reply.drafts == drafts
    assert reply.distributions is None


def test_distributions_arrive_bit_for_bit() -> None:
    probs = np.random.default_rng(0).random((3, 5), dtype=np.float32)
    ids = np.arange(15, dtype=np.int32).reshape(3, 5) * 10_000
    reply = DraftReply([[4, 5], [6]], Distributions(ids, probs))
    found = pickle.loads(pickle.dumps(reply)).distributions
    assert found.ids_NM.tolist() == ids.tolist()
    assert found.probs_NM.tobytes() == probs.tobytes()
    assert reply.num_bytes == 4 * (2 + 3 + 15 + 15)


@pytest.mark.parametrize("num_rows", [1, 2, 32])
@pytest.mark.parametrize("num_drafted", [4, 7])
def test_a_row_and_round_takes_24_bytes_and_8_for_each_drafted_token(num_rows: int, num_drafted: int) -> None:
    updates = [RowUpdate(slot, num_drafted, 100, [5] * (num_drafted + 1)) for slot in range(num_rows)]
    request, reply = DraftRequest([], updates), DraftReply([[5] * num_drafted] * num_rows)
    assert request.num_bytes + reply.num_bytes == (24 + 8 * num_drafted) * num_rows
    assert len(pickle.dumps(request)) + len(pickle.dumps(reply)) < 2000 + (24 + 8 * num_drafted) * num_rows
