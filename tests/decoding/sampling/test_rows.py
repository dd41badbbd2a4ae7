"""The rows of a round give drafter and verifier the same noise and the same history, as if each was made anew."""

import torch

from decoding.noise import GumbelNoise, Stream
from decoding.sampling.picks import pick_tokens
from decoding.sampling.rows import Rows
from tests.decoding.tiny import numbered, rows_over

VOCAB_SIZE = 3000
PARAMS = [{}, {"temperature": 0}, {"top_p": 0.9}, {"top_k": 20, "temperature": 0.5}]


def _rows(num_draft_tokens: int = 3, **common: object) -> Rows:
    sequences = numbered([[5], [5, 6], [5, 6, 7], [5]], PARAMS, **common)
    for row, sequence in enumerate(sequences):
        sequence.output_token_ids += [9, 5, 8, 2][:row]
    return rows_over(sequences, (num_draft_tokens,) * len(PARAMS))


def _logits(num_positions: int) -> torch.Tensor:
    return 3 * torch.randn(len(PARAMS), num_positions, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def test_the_noise_of_a_round_is_what_it_would_be_drawn_anew(monkeypatch):
    rows, drawn = _rows(), []
    real = GumbelNoise.draw.__func__
    monkeypatch.setattr(GumbelNoise, "draw", classmethod(lambda *args: drawn.append(args[2]) or real(*args)))
    logits_BJV, nothing = _logits(4), torch.zeros(len(PARAMS), 0, dtype=torch.long)
    steps = [rows.pick(logits_BJV[:, step : step + 1], nothing, step) for step in range(4)]
    together = rows.pick(logits_BJV, nothing, 0)
    # The drafter's steps and the verifier share what is drawn: no position twice.
    assert torch.equal(torch.cat(drawn, dim=1), rows.positions(0, 4))

    fresh = real(GumbelNoise, rows.sampling.keys_B, rows.positions(0, 4), VOCAB_SIZE, Stream.SHARED)
    expected = pick_tokens(logits_BJV, rows.sampling, fresh)
    for name in expected._fields[:5]:
        assert torch.equal(getattr(together, name), getattr(expected, name)), name
        assert torch.equal(torch.cat([getattr(step, name) for step in steps], 1), getattr(expected, name)), name


def test_the_history_is_each_rows_own_tokens_and_then_the_draft():
    rows = _rows(frequency_penalty=0.5)
    drafted_BK = torch.tensor([[11, 12], [13, 14], [15, 16], [17, 18]])
    for num_drafted in (2, 0, 1):
        history = rows.history(drafted_BK[:, :num_drafted], num_drafted, 1)
        for row, sequence in enumerate(rows.sequences):
            length = int(history.lengths_BJ[row, 0])
            expected = sequence.token_ids + drafted_BK[row, :num_drafted].tolist()
            assert history.token_ids_BL[row, :length].tolist() == expected
            assert history.prompt_lengths_B[row] == len(sequence.prompt_token_ids)
