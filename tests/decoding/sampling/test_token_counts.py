"""Counts that are kept from round to round are those of the text, whatever happens to the rows."""

import random
from collections import Counter

import pytest
import torch

from decoding import SamplingParams, Sequence
from decoding.sampling import token_history
from decoding.sampling.token_history import TokenCounts

VOCAB_SIZE, CPU = 30, torch.device("cpu")


def _row(chance: random.Random, penalty: float = 0.5) -> Sequence:
    prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(1, 9))]
    return Sequence.create(prompt, SamplingParams(frequency_penalty=penalty), row=chance.randrange(1000))


def _assert_right(counts: TokenCounts, rows: list[Sequence]) -> None:
    is_counted = [row.params.uses_token_counts for row in rows]
    counts_RV, rows_B = counts.of(rows, is_counted, VOCAB_SIZE)
    for row, place, is_it in zip(rows, rows_B.tolist(), is_counted, strict=True):
        if is_it:
            outputs, prompt = Counter(row.output_token_ids), set(row.prompt_token_ids)
            expected = [2 * outputs[token] + (token in prompt) for token in range(VOCAB_SIZE)]
            assert counts_RV[place].tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_counts_follow_rows_that_grow_finish_move_and_come_back(seed):
    chance = random.Random(seed)
    num_slots = 4
    counts, running, evicted = TokenCounts(num_slots, CPU), [], []
    for _ in range(60):
        while len(running) < num_slots and chance.random() < 0.7:
            comes_back = evicted and chance.random() < 0.5
            running.append(evicted.pop() if comes_back else _row(chance, chance.choice([0.0, 0.5, 1.0])))
        chance.shuffle(running)  # slots are swapped
        for row in running:  # a round commits what was accepted of a draft, and one token more
            row.output_token_ids += [chance.randrange(VOCAB_SIZE) for _ in range(chance.randint(1, 5))]
        if running:
            _assert_right(counts, running)
            _assert_right(counts, chance.sample(running, chance.randint(1, len(running))))  # a drafter's part of them
        for row in chance.sample(running, min(len(running), chance.choice([0, 0, 1, 2]))):
            running.remove(row)
            if chance.random() < 0.5:
                evicted.append(row)
                row.output_token_ids += [chance.randrange(VOCAB_SIZE)]  # a round that was under way


def test_a_round_sends_only_the_tokens_that_are_new(monkeypatch):
    sent = []
    real = token_history.to_device
    monkeypatch.setattr(token_history, "to_device", lambda values, *rest: sent.append(values) or real(values, *rest))
    chance = random.Random(0)
    rows = [_row(chance) for _ in range(3)]
    counts = TokenCounts(3, CPU)
    _assert_right(counts, rows)
    sent.clear()
    rows[1].output_token_ids += [7, 7]
    _assert_right(counts, rows)
    assert sent == [[[VOCAB_SIZE + 7] * 2, [2, 2]], [0, 1, 2]]


def test_rows_are_reused_and_the_table_does_not_move():
    chance, counts = random.Random(0), TokenCounts(2, CPU)
    tables = set()
    for _ in range(10):
        rows = [_row(chance) for _ in range(2)]
        tables.add(counts.of(rows, [True, True], VOCAB_SIZE).counts_RV.data_ptr())
        _assert_right(counts, rows)
    assert len(tables) == 1
