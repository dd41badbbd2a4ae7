"""Penalties from counts that are kept on the device are those from the whole text, round after round."""

import random

import torch

from decoding import SamplingParams
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.token_history import TokenCounts
from decoding.sequence import Sequence
from tests.decoding.gpu.interpreted.test_picks import by_torch

VOCAB_SIZE, NUM_SLOTS, CPU = 70, 3, torch.device("cpu")
FIELDS = [
    {"repetition_penalty": 1.4, "temperature": 0},
    {"presence_penalty": 1.5, "frequency_penalty": 0.6, "top_p": 0.9},
    {"frequency_penalty": -1.5, "temperature": 0.5},
    {"temperature": 0},
]


def test_rounds_with_rejected_drafts_and_changing_rows_penalize_as_torch_does():
    chance, counts = random.Random(0), TokenCounts(NUM_SLOTS, CPU)
    running: list[Sequence] = []
    waiting = [Sequence.create([n, 3], SamplingParams(**FIELDS[n % len(FIELDS)]), row=n) for n in range(7)]
    num_penalized = 0
    for number in range(8):
        while len(running) < NUM_SLOTS and waiting:
            running.append(waiting.pop(0))
        sampling = sampling_batch(tuple(running), frozenset(), CPU)
        rows = Rows(tuple(running), sampling, (2,) * len(running), COUPLED, token_counts=counts)
        generator = torch.Generator().manual_seed(number)
        logits_BJV = torch.randn(len(running), 3, VOCAB_SIZE, generator=generator)
        logits_BJV[..., :6] += 2  # few tokens, so that they repeat
        drafted_BK = torch.randint(6, (len(running), 2), generator=generator)
        part = rows.take([len(running) - 1])
        step = part.pick(logits_BJV[-1:, 1:2], drafted_BK[-1:, :1], 1)
        found, expected = rows.pick(logits_BJV, drafted_BK, 0), by_torch(rows).pick(logits_BJV, drafted_BK, 0)
        assert torch.equal(found.token_ids_BJ, expected.token_ids_BJ)
        torch.testing.assert_close(found.best_BJ, expected.best_BJ)
        assert torch.equal(step.best_BJ, found.best_BJ[-1:, 1:2])
        plain = logits_BJV.gather(-1, found.token_ids_BJ[..., None])[..., 0]
        num_penalized += int((found.score_BJ * sampling.temperature_B[:, None] != plain).sum())
        for row, tokens in zip(running, found.token_ids_BJ.tolist(), strict=True):
            row.output_token_ids += tokens[: chance.randint(1, 3)]  # the rest of the draft is rejected
        if number % 2:
            waiting.append(running.pop(0))  # evicted, to be admitted again
        running.reverse()
    assert num_penalized >= 5
