"""What a cut keeps does not depend on how long a list it was found in, nor on the other rows."""

import math
import random

import pytest
import torch

from decoding import SamplingParams
from decoding.sampling import cuts
from decoding.sampling.cuts import Scores, find_supports
from decoding.sampling.distribution import process_logits, truncate
from decoding.sampling.rules import verify_coupled
from decoding.sampling.verdicts import Draft
from tests.decoding.sampling.cases import LOGITS, PARAMS, VOCAB_SIZES, Case

CUTTING = ["top_k", "top_p", "min_p", "all cuts"]
SIZES = [[1], [2, 5], [16, 64], [300], []]


def _scores(name: str, num_rows: int, vocab_size: int, seed: int) -> torch.Tensor:
    return LOGITS[name](num_rows, vocab_size, torch.Generator().manual_seed(seed)).float()


def _with_sizes(monkeypatch, sizes: list[int]) -> None:
    monkeypatch.setattr(cuts, "_sizes", lambda most, vocab: [*(s for s in sizes if s < vocab), vocab])


@pytest.mark.parametrize("params", CUTTING)
@pytest.mark.parametrize("logits", LOGITS)
def test_short_lists_keep_what_the_whole_vocabulary_keeps(logits, params, monkeypatch):
    rows = [SamplingParams(**fields) for fields in PARAMS[params]]
    for seed, vocab_size in enumerate(VOCAB_SIZES):
        scores_BJV = _scores(logits, len(rows), vocab_size, seed)
        sampling = Case(scores_BJV, rows).sampling
        _with_sizes(monkeypatch, [])
        expected = truncate(scores_BJV, sampling)
        for sizes in SIZES:
            _with_sizes(monkeypatch, sizes)
            assert torch.equal(truncate(scores_BJV, sampling), expected), (vocab_size, sizes)


def _keeps(scores_V: list[float], params: SamplingParams) -> tuple[set[int], bool]:
    """The rules in plain Python, in float64, and whether they are clear; of equals, top-p drops the lowest id first."""
    order = sorted(range(len(scores_V)), key=lambda token: (scores_V[token], token), reverse=True)
    kept, is_clear = [token for token in order if scores_V[token] > -float("inf")], True
    if params.top_k:
        last = scores_V[order[min(params.top_k, len(order)) - 1]]
        kept = [token for token in kept if scores_V[token] >= last]
    if params.top_p < 1:
        weights = torch.tensor([scores_V[token] for token in kept], dtype=torch.float64).softmax(0)
        before = [0.0, *weights.cumsum(0).tolist()]
        kept = [token for token, mass in zip(kept, before, strict=False) if mass < params.top_p or token == order[0]]
        is_clear = min(abs(mass - params.top_p) for mass in before) > 1e-6
    if params.min_p:
        floor = scores_V[order[0]] + math.log(params.min_p)
        kept = [token for token in kept if scores_V[token] >= floor]
        is_clear &= min(abs(score - floor) for score in scores_V) > 1e-6 or params.min_p == 1
    return set(kept), is_clear


@pytest.mark.parametrize("seed", range(8))
def test_cuts_are_the_rules_in_plain_python(seed):
    chance = random.Random(seed)
    rows = [SamplingParams(**chance.choice(PARAMS[chance.choice(CUTTING)])) for _ in range(6)]
    name = chance.choice(["spread", "wide", "ties", "descending", "half forbidden", "all forbidden but one"])
    scores_BJV = _scores(name, len(rows), chance.choice(VOCAB_SIZES[2:]), seed)
    cut_BJV, num_clear = truncate(scores_BJV, Case(scores_BJV, rows).sampling), 0
    for params, before_JV, after_JV in zip(rows, scores_BJV, cut_BJV, strict=True):
        for before_V, after_V in zip(before_JV, after_JV, strict=True):
            kept = after_V.isfinite()
            assert torch.equal(after_V[kept], before_V[kept])
            expected, is_clear = _keeps(before_V.tolist(), params)
            if is_clear:
                num_clear += 1
                assert set(kept.nonzero()[:, 0].tolist()) == expected, params
    assert num_clear > 0


@pytest.mark.parametrize("size", [[], [4], [64]])
def test_borders_are_found_in_short_lists_as_in_the_whole_vocabulary(size, monkeypatch):
    """Loose and tight cuts, too: where rounding could let a token in, the list must reach that far."""
    params = [{"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.02}]
    rows = [SamplingParams(temperature=0.7, **fields) for fields in params for _ in range(10)]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-4, 5, (len(rows), 3, 500), generator=generator).float()
    logits += 2e-5 * torch.randn(logits.shape, generator=generator)  # many tokens within rounding of any cut
    case = Case(logits, rows)
    _with_sizes(monkeypatch, [])
    expected = case.picked(margin=1e-4)
    assert 0 < expected.is_at_border_BJ.float().mean() < 1
    _with_sizes(monkeypatch, size)
    found = case.picked(margin=1e-4)
    assert torch.equal(found.is_at_border_BJ, expected.is_at_border_BJ)
    assert torch.equal(found.token_ids_BJ, expected.token_ids_BJ)


@pytest.mark.parametrize(
    "fields", [{"top_k": 6}, {"top_p": 0.7}, {"min_p": math.exp(-2 / 0.7)}, {"top_k": 9, "top_p": 0.8}]
)
def test_a_pick_that_rounding_changes_is_a_close_call(fields):
    """The same holds if near-equal tokens are at a cut, and the one that is cut off would have won."""
    margin, rows = 1e-4, [SamplingParams(temperature=0.7, **fields)] * 60
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-4, 5, (len(rows), 1, 300), generator=generator).float()
    logits += 2e-5 * torch.randn(logits.shape, generator=generator)
    case = Case(logits, rows)
    nothing = Draft(torch.zeros(len(rows), 0, dtype=torch.long), torch.zeros(len(rows), dtype=torch.long))
    verdict = verify_coupled(case.picked(margin), nothing, case.sampling, margin)
    num_changed = 0
    for _ in range(20):
        rounded = logits + 1e-5 * torch.randn(logits.shape, generator=generator)
        changed_B = Case(rounded, rows).picked().token_ids_BJ[:, 0] != verdict.next_token_B
        num_changed += int(changed_B.sum())
        assert (verdict.first_close_call_B[changed_B] == 0).all()
    assert num_changed > 0


def test_top_p_counts_every_token_that_equals_the_last_one_of_top_k():
    """All of these stay after top-k, also those behind the list in which the last one was found."""
    scores_11V = torch.zeros(1, 1, 4000)
    scores_11V[..., ::60] = 1.0  # 67 tokens
    alone = [SamplingParams(top_k=70, top_p=0.9)]
    kept = truncate(scores_11V, Case(scores_11V, alone).sampling).isfinite()
    mass = torch.where(scores_11V == 1.0, math.e, 1.0)
    assert kept.sum() == 67 + math.ceil(0.9 * float(mass.sum()) - 67 * math.e)
    beside = [*alone, SamplingParams(top_k=900)]
    together = truncate(scores_11V.expand(2, 1, -1), Case(scores_11V.expand(2, 1, -1), beside).sampling).isfinite()
    assert torch.equal(together[:1], kept)


def test_loose_holds_kept_and_kept_holds_tight():
    for name in LOGITS:
        rows = [SamplingParams(**fields) for fields in PARAMS["top_p"] + PARAMS["min_p"]]
        scores_BJV = _scores(name, len(rows), 700, 3)
        scores = Scores.over(scores_BJV, torch.ones(len(rows)))
        for kind in Case(scores_BJV, rows).sampling.kinds:
            places = kind.places(3)
            own = scores if places is None else scores.of(places)
            found = list(find_supports(own, kind.cuts.repeated(3), margin=1e-3))
            assert sorted(torch.cat([s.index_P for s in found]).tolist()) == list(range(len(own.places_P)))
            for support in found:
                assert not (support.is_kept_PM & ~support.is_loose_PM).any()
                assert not (support.is_tight_PM & ~support.is_kept_PM).any()


@pytest.mark.parametrize("margin", [0.0, 1e-4])
@pytest.mark.parametrize("logits", ["spread", "flat", "ties", "bfloat16"])
def test_a_row_gets_the_same_pick_alone_as_in_a_mixed_batch(logits, margin):
    rows = [SamplingParams(**fields) for name in PARAMS for fields in PARAMS[name]]
    for vocab_size in (65, 1000, 5003):
        logits_BJV = LOGITS[logits](len(rows), vocab_size, torch.Generator().manual_seed(1))
        together = Case(logits_BJV, rows).picked(margin)
        for row in range(len(rows)):
            alone = Case(logits_BJV[row : row + 1], rows[row : row + 1], first_row=row).picked(margin)
            for name in alone._fields:
                assert torch.equal(getattr(alone, name)[0], getattr(together, name)[row]), (name, rows[row])


def test_one_broken_row_leaves_the_picks_of_its_neighbours_alone():
    rows = [SamplingParams(**fields) for name in PARAMS for fields in PARAMS[name]]
    logits = LOGITS["spread"](len(rows), 1000, torch.Generator().manual_seed(2))
    clean = Case(logits, rows).picked(1e-4)
    for poison in (float("nan"), float("inf"), -float("inf")):
        for row in range(len(rows)):
            dirty = logits.clone()
            dirty[row] = poison
            found = Case(dirty, rows).picked(1e-4)
            assert not found.is_finite_BJ[row].any()
            assert ((found.token_ids_BJ[row] >= 0) & (found.token_ids_BJ[row] < 1000)).all()
            others = torch.arange(len(rows)) != row
            assert found.is_finite_BJ[others].all()
            assert torch.equal(found.token_ids_BJ[others], clean.token_ids_BJ[others])
            assert torch.equal(found.second_BJ[others], clean.second_BJ[others])


def test_one_value_that_is_not_finite_is_reported():
    for poison in (float("nan"), float("inf")):
        logits = torch.randn(1, 2, 1000)
        logits[0, 1, 333] = poison
        for name in ("open", "greedy", "top_p", "top_k"):
            found = Case(logits, [SamplingParams(**PARAMS[name][0])]).picked(1e-4)
            assert found.is_finite_BJ.tolist() == [[True, False]]


def test_picks_and_process_logits_cut_alike():
    """Rejection verifies with `process_logits`, so a pick must come from the tokens that it keeps."""
    rows = [SamplingParams(**fields) for name in CUTTING for fields in PARAMS[name]]
    case = Case(LOGITS["spread"](len(rows), 1000, torch.Generator().manual_seed(4)), rows)
    kept_BJV = process_logits(case.logits_BJV, case.sampling, None).isfinite()  # no row looks at what came before
    assert kept_BJV.gather(-1, case.picked().token_ids_BJ[..., None]).all()
