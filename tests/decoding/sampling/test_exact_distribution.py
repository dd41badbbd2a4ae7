"""The rejection rule writes exactly the target's distribution: every path is enumerated in float64, without noise."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from decoding import SamplingParams
from decoding.sampling.verdicts import Draft
from tests.decoding.toy import PROMPT, Language, difference, rejection_rule, speculative_distribution, total_variation

EXACT = 1e-12
UNADJUSTED = partial(rejection_rule, verification="unadjusted")
PARAMS = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 2.0},
    "greedy": {"temperature": 0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.7},
    "presence_frequency": {"presence_penalty": 1.0, "frequency_penalty": 0.6},
    "logit_bias": {"logit_bias": {0: 2.0, 2: -100.0}},
    "min_tokens": {"min_tokens": 2, "stop_token_ids": (0,)},
    "allowed_token_ids": {"allowed_token_ids": [0, 2, 3]},
    "bad_words": {"bad_words": [[1], [0, 0], [2, 3], [0, 2, 0]], "top_k": 3},
    "everything": {
        "temperature": 0.8,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
    },
    "greedy_penalized": {"temperature": 0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
}


def _pair(vocab_size: int, params: dict[str, object], seed: int = 0) -> tuple[Language, Language]:
    sampling = SamplingParams(**params)
    return Language.random(vocab_size, seed, sampling), Language.random(vocab_size, seed + 100, sampling)


@pytest.mark.parametrize(("num_draft_tokens", "is_point_mass"), [(1, True), (2, False), (3, False), (3, True)])
@pytest.mark.parametrize("name", PARAMS)
def test_the_joint_distribution_of_a_round_and_the_next_is_the_targets(name, num_draft_tokens, is_point_mass):
    target, draft = _pair(4, PARAMS[name])
    num_tokens = num_draft_tokens + 1
    found = speculative_distribution(
        target, draft, num_draft_tokens, num_tokens, rejection_rule, is_point_mass=is_point_mass
    )
    assert difference(found, target.distribution(num_tokens)) < EXACT
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_the_distribution_over_several_rounds_is_the_targets(seed):
    target, draft = _pair(4, PARAMS["everything"], seed)
    assert difference(speculative_distribution(target, draft, 1, 5, rejection_rule), target.distribution(5)) < EXACT


@pytest.mark.parametrize("vocab_size", [5, 6, 8])
def test_larger_vocabularies_keep_the_distribution(vocab_size):
    target, draft = _pair(vocab_size, PARAMS["plain"], seed=7)
    assert difference(speculative_distribution(target, draft, 2, 3, rejection_rule), target.distribution(3)) < EXACT


@pytest.mark.parametrize("most_candidates", [1, 2, 3])
@pytest.mark.parametrize("name", PARAMS)
def test_a_draft_that_draws_from_its_best_tokens_only_keeps_the_distribution(name, most_candidates):
    target, draft = _pair(4, PARAMS[name])
    few = replace(draft, most_candidates=most_candidates)
    assert difference(speculative_distribution(target, few, 2, 3, rejection_rule), target.distribution(3)) < EXACT


def test_drawing_from_the_best_tokens_and_stating_the_distribution_of_all_breaks_it():
    target, draft = _pair(4, PARAMS["plain"])
    few = replace(draft, most_candidates=2)

    def rule_with_all(probs: torch.Tensor, drafts: Draft):
        drafted_NK = drafts.token_ids_BK
        tokens_NL = torch.cat([torch.tensor([PROMPT]).expand(len(drafted_NK), -1), drafted_NK], dim=1)
        return _stating(probs, drafts, draft.probs(tokens_NL, drafted_NK.shape[1] + 1)[:, :-1])

    assert difference(speculative_distribution(target, few, 1, 2, rejection_rule), target.distribution(2)) < EXACT
    assert difference(speculative_distribution(target, few, 1, 2, rule_with_all), target.distribution(2)) > 1e-3


@pytest.mark.parametrize("is_point_mass", [False, True])
def test_drafts_cut_behind_a_stop_id_keep_the_distribution(is_point_mass):
    target, draft = _pair(4, {"stop_token_ids": (2,)})
    found = speculative_distribution(target, draft, 3, 4, rejection_rule, is_point_mass=is_point_mass)
    assert difference(found, target.distribution(4)) < EXACT


def test_rows_with_fewer_draft_tokens_than_their_neighbours_keep_the_distribution():
    """The rest of the row is junk, its stated distribution included; the length does not depend on drafted tokens."""
    target, draft = _pair(4, PARAMS["plain"])
    for length in range(4):
        of_length = partial(lambda n, drafts: torch.full_like(drafts.num_draft_tokens_B, n), length)
        found = speculative_distribution(target, draft, 3, 4, rejection_rule, shorten=of_length)
        assert difference(found, target.distribution(4)) < EXACT


def test_a_draft_cut_behind_a_token_because_of_that_token_keeps_the_distribution():
    """Stopping after a token is allowed; dropping the token itself is not (DSpark, appendix A)."""
    target, draft = _pair(4, PARAMS["plain"])

    def keep_it(drafts: Draft) -> torch.Tensor:
        return (drafts.token_ids_BK != 0).long().cumprod(-1).sum(-1).add(1).clamp(max=drafts.token_ids_BK.shape[1])

    def drop_it(drafts: Draft) -> torch.Tensor:
        return (drafts.token_ids_BK != 0).long().cumprod(-1).sum(-1)

    expected = target.distribution(4)
    assert difference(speculative_distribution(target, draft, 3, 4, rejection_rule, shorten=keep_it), expected) < EXACT
    assert difference(speculative_distribution(target, draft, 3, 4, rejection_rule, shorten=drop_it), expected) > 1e-3


def test_a_draft_from_the_targets_own_distribution_is_accepted_with_certainty():
    target, _ = _pair(5, PARAMS["everything"])
    tokens = torch.tensor([[1, 0, 3], [2, 2, 4]])
    probs = target.probs(tokens, 2)
    best = probs[:, :1].argmax(-1)
    accept, recover = rejection_rule(probs, Draft(best, torch.tensor([1, 1]), probs[:, :1]))
    assert accept.tolist() == [[1.0], [1.0]]
    assert recover.isfinite().all()


@pytest.mark.parametrize("is_point_mass", [False, True])
def test_an_impossible_token_is_never_accepted_nor_recovered(is_point_mass):
    probs = torch.tensor([[[0.0, 0.5, 0.5], [0.5, 0.5, 0.0]]], dtype=torch.float64)
    stated = None if is_point_mass else torch.tensor([[[0.9, 0.1, 0.0]]], dtype=torch.float64)
    accept, recover = rejection_rule(probs, Draft(torch.tensor([[0]]), torch.tensor([1]), stated))
    assert accept.item() == 0
    assert recover[0, 0, 0] == 0
    assert recover[0, 1, 2] == 0


def test_a_stated_distribution_with_nan_behind_its_end_changes_nothing():
    """A drafter whose model fails states nonsense; its row then has no draft tokens."""
    target, _ = _pair(4, PARAMS["plain"])
    probs = target.probs(torch.tensor([[1, 0, 1]]), 2)
    nonsense = torch.full((1, 1, 4), float("nan"), dtype=torch.float64)
    accept, recover = rejection_rule(probs, Draft(torch.tensor([[2]]), torch.tensor([0]), nonsense))
    torch.testing.assert_close(recover, probs, rtol=0, atol=1e-15)
    assert not (accept > 0).any()


def _swapped(probs: torch.Tensor, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule with p for q and q for p."""
    return rejection_rule(torch.cat([draft.probs_BKV, probs[:, -1:]], 1), replace(draft, probs_BKV=probs[:, :-1]))


def _stating(probs: torch.Tensor, draft: Draft, stated: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return rejection_rule(probs, replace(draft, probs_BKV=stated))


def _bonus_from_the_last_draft_position(probs: torch.Tensor, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    accept, recover = rejection_rule(probs, draft)
    return accept, torch.cat([recover[:, :-1], probs[:, -2:-1]], dim=1)


def _unfiltered_q(probs: torch.Tensor, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
    flatter = draft.probs_BKV.clamp(min=0.05)
    return _stating(probs, draft, flatter / flatter.sum(-1, keepdim=True))


BUGS = {
    "swapped": lambda p, draft: (_swapped(p, draft)[0], rejection_rule(p, draft)[1]),
    "residual swapped": lambda p, draft: (rejection_rule(p, draft)[0], _swapped(p, draft)[1]),
    "no residual": lambda p, draft: (rejection_rule(p, draft)[0], p),
    "always accept": lambda p, draft: (torch.ones(draft.token_ids_BK.shape), rejection_rule(p, draft)[1]),
    "stale q": lambda p, draft: _stating(p, draft, draft.probs_BKV.roll(1, dims=1)),
    "bonus from the last draft position": _bonus_from_the_last_draft_position,
    "point mass without taking the token out": lambda p, draft: (_stating(p, draft, None)[0], p),
    "unfiltered q": _unfiltered_q,
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("name", ["plain", "top_k", "everything"])
def test_a_planted_bug_breaks_the_distribution(bug, name):
    target, draft = _pair(4, PARAMS[name])

    def broken(probs: torch.Tensor, drafts: Draft):
        return BUGS[bug](probs, drafts) if drafts.token_ids_BK.shape[1] else rejection_rule(probs, drafts)

    assert difference(speculative_distribution(target, draft, 2, 3, broken), target.distribution(3)) > 1e-4


def test_a_soft_greedy_row_breaks_the_distribution(monkeypatch):
    """Greedy is a point mass; a low temperature is not."""
    target, draft = _pair(4, PARAMS["greedy"])
    expected = target.distribution(3)
    monkeypatch.setattr("tests.decoding.toy.probabilities", lambda scores, sampling: (scores * 3).softmax(-1))
    assert difference(speculative_distribution(target, draft, 2, 3, rejection_rule), expected) > 1e-4


@pytest.mark.parametrize("name", [name for name in PARAMS if "greedy" not in name])
def test_unadjusted_breaks_the_distribution(name):
    target, draft = _pair(4, PARAMS[name])
    assert difference(speculative_distribution(target, draft, 2, 3, UNADJUSTED), target.distribution(3)) > 1e-3


@pytest.mark.parametrize("name", ["greedy", "greedy_penalized"])
def test_unadjusted_writes_the_targets_text_at_temperature_zero(name):
    target, draft = _pair(4, PARAMS[name])
    for draft_params in (target.params, SamplingParams()):  # a greedy draft, and one that draws
        other = replace(draft, params=draft_params)
        assert difference(speculative_distribution(target, other, 2, 3, UNADJUSTED), target.distribution(3)) < EXACT


def test_unadjusted_writes_the_targets_distribution_where_the_draft_has_it():
    target, _ = _pair(4, PARAMS["everything"])
    assert difference(speculative_distribution(target, target, 2, 3, UNADJUSTED), target.distribution(3)) < EXACT


def test_the_distance_of_unadjusted_from_the_target_is_what_the_docs_say():
    """Texts of 4 tokens, in total variation, by a draft that knows nothing of its target."""
    target, draft = _pair(5, PARAMS["plain"])
    laws = [speculative_distribution(target, draft, num_tokens, 4, UNADJUSTED) for num_tokens in range(4)]
    none, *distances = [total_variation(law, target.distribution(4)) for law in laws]
    assert none < EXACT
    one, two, three = (f"{distance:.3f}" for distance in distances)
    assert f"{one}, {two} and {three}" in (Path(__file__).parents[3] / "docs/promise.md").read_text()
