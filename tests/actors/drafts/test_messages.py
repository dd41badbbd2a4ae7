"""Messages between an engine and its draft actor: what Ray sends is read as it was written, and is small."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from ray import cloudpickle

from actors.drafts.mirror import Distributions, DraftReply, DraftRequest, RowOrigin, RowUpdate
from decoding import SamplingParams

PARAMS = SamplingParams(bad_words=[[1, 2], [3]])


def test_a_row_with_bad_words_that_was_already_drafted_for_is_sent_by_cloudpickle_as_ray_sends_it() -> None:
    kept = PARAMS.bad_word_list  # made before the row is sent
    request = cloudpickle.loads(cloudpickle.dumps(DraftRequest([], [RowUpdate(0, 4, 0, [5], RowOrigin(1, PARAMS, 7))])))
    (update,) = request.updates
    assert update.origin.params == PARAMS
    assert update.origin.params.bad_word_list is kept


def test_the_size_of_a_message_is_that_of_its_numbers() -> None:
    whole, newer = RowUpdate(0, 4, 0, [5, 6, 7], RowOrigin(2, PARAMS, 7)), RowUpdate(1, 4, 3, [8])
    request = DraftRequest([(0, 1)], [whole, newer])
    assert (request.num_bytes, request.num_new_row_bytes) == (4 * (2 + 4 + 3 + 4 + 1), 4 * 3)
    distributions = Distributions(np.zeros((3, 5), np.int32), np.zeros((3, 5), np.float32))
    reply = DraftReply([[4, 5], [6], None], distributions)
    assert (reply.num_bytes, reply.num_distribution_bytes) == (4 * (3 + 2 + 1 + 15 + 15), 4 * 30)


@pytest.mark.parametrize("num_rows", [1, 2, 32])
@pytest.mark.parametrize("num_drafted", [4, 7])
def test_a_row_and_round_takes_24_bytes_and_8_for_each_drafted_token(num_rows: int, num_drafted: int) -> None:
    updates = [RowUpdate(slot, num_drafted, 100, [5] * (num_drafted + 1)) for slot in range(num_rows)]
    request, reply = DraftRequest([], updates), DraftReply([[5] * num_drafted] * num_rows)
    assert request.num_bytes + reply.num_bytes == (24 + 8 * num_drafted) * num_rows
    assert len(pickle.dumps(request)) + len(pickle.dumps(reply)) < 2000 + (24 + 8 * num_drafted) * num_rows
