"""A round's log-probabilities are those of each token by itself, for all rows at once, with one copy to the host."""

import random

import pytest
import torch

from decoding.sampling import logprobs
from decoding.sampling.judging import send
from decoding.sampling.verdicts import Draft, SentVerdicts, Verdicts
from decoding.sequence import TokenLogprobs
from tests.decoding.gpu.operations import Operations


def _round(seed: int, num_rows: int) -> tuple[Verdicts, Draft, torch.Tensor, list[int | None]]:
    """What `send` takes."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    num_drafted, vocab_size = chance.choice([0, 1, 4]), chance.choice([3, 50, 3000])
    logits_BJV = 3 * torch.randn(num_rows, num_drafted + 1, vocab_size, generator=generator)
    accepted_B = torch.randint(num_drafted + 1, (num_rows,), generator=generator)
    next_B = torch.randint(vocab_size, (num_rows,), generator=generator)
    draft = Draft(torch.randint(vocab_size, (num_rows, num_drafted), generator=generator), accepted_B)
    asked = [chance.choice([None, 0, 2, 2, 5, 20]) for _ in range(num_rows)]
    dtype = chance.choice([torch.float32, torch.bfloat16])
    is_finite_B = torch.rand(num_rows, generator=generator) < 0.8
    next_B[~is_finite_B] = vocab_size  # what the rejection rule may draw from numbers that are none
    return Verdicts(accepted_B, next_B, accepted_B + 1, is_finite_B), draft, logits_BJV.to(dtype), asked


def _expected(logits_V: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    logprobs_V = logits_V.float().log_softmax(-1)
    top = logprobs_V.topk(min(num_top, len(logprobs_V)))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return TokenLogprobs(logprobs_V[token_id].item(), tuple(pairs))


def _as_recorded(verdict: Verdicts, draft: Draft, logits_BJV: torch.Tensor, asked: list[int | None]) -> SentVerdicts:
    """Send all rows' numbers in the lines of their verdicts."""
    (_, num_positions, vocab_size), drafted_BK = logits_BJV.shape, draft.token_ids_BK
    lines = logprobs.LineLogprobs(asked, num_positions, vocab_size)
    written_BJ = logprobs.written(verdict.num_accepted_B, verdict.next_token_B, drafted_BK, vocab_size)
    columns_BC = verdict.columns(drafted_BK, draft.num_draft_tokens_B)
    return SentVerdicts(torch.cat((columns_BC, *lines.lines(written_BJ, logits_BJV)), dim=1), lines)


@pytest.mark.parametrize("kind", ["a CPU", "a GPU", "a recording"])
def test_the_logprobs_of_a_round_are_those_of_each_token_by_itself(monkeypatch, kind):
    send_as = _as_recorded if kind == "a recording" else send
    monkeypatch.setattr(logprobs, "_knows_counts", lambda device: kind == "a CPU")
    monkeypatch.setattr(logprobs, "_AT_ONCE_ON_GPU", 7000)
    for seed in range(30):
        verdict, draft, logits_BJV, asked = _round(seed, 1 + seed % 6)
        for row, found in enumerate(send_as(verdict, draft, logits_BJV, asked).result()):
            assert found.num_accepted == verdict.num_accepted_B[row]
            assert found.next_token == verdict.next_token_B[row]
            assert found.draft_token_ids == draft.token_ids_BK[row].tolist()
            tokens = [*found.draft_token_ids[: found.num_accepted], found.next_token]
            if asked[row] is None or not verdict.is_finite_B[row]:
                assert found.logprobs == []
            else:
                positions = zip(logits_BJV[row], tokens, strict=False)
                assert found.logprobs == [_expected(logits_V, token, asked[row]) for logits_V, token in positions]


def test_a_gpu_computes_all_rows_with_a_few_operations_and_one_copy(monkeypatch):
    monkeypatch.setattr(logprobs, "_knows_counts", lambda device: False)
    counted = []
    for num_rows in (2, 100):
        verdict, draft, logits_BJV, _ = _round(1, num_rows)
        with Operations() as judged:
            verdicts = send(verdict, draft, logits_BJV, [3] * num_rows)
        assert not judged.waits
        with Operations() as read:
            verdicts.result()
        assert not read.waits.keys() - {"tolist"}, "what is read is on the host"
        counted.append(judged.launches.total())
    assert max(counted) < 40
