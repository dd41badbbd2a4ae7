"""What the verifiers really draw: right counts, right law (chi-square), and planted bugs that the same check sees."""

from collections import Counter
from functools import cache

import pytest
import torch

from decoding import SamplingParams, noise
from decoding.noise import Stream, gumbel, uniform
from decoding.sampling import verify
from decoding.sampling.batch import first_stop, probabilities
from decoding.sampling.verify import Draft, draw_draft, pick_shared, verify_coupled, verify_rejection
from tests.decoding.toy import PROMPT, Language, is_plausible

NUM_ROWS = 40_000
NUM_DRAFT_TOKENS = 2
PARAMS = {
    "plain": {},
    "greedy": {"temperature": 0},
    "top_k_top_p": {"temperature": 1.2, "top_k": 4, "top_p": 0.85},
    "penalties": {"min_p": 0.05, "repetition_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": -0.3},
}


@cache
def _pair(name: str, vocab_size: int = 6) -> tuple[Language, Language]:
    params = SamplingParams(**PARAMS[name])
    return Language.random(vocab_size, 1, params), Language.random(vocab_size, 2, params)


def _positions(first: int, num_positions: int, num_rows: int = NUM_ROWS) -> torch.Tensor:
    return (len(PROMPT) + first + torch.arange(num_positions)).expand(num_rows, -1)


def _draw_drafts(draft: Language, rule: str, num_rows: int = NUM_ROWS, claims_point_mass: bool = False) -> Draft:
    """Drafted token by token, as the model drafter does."""
    sampling = draft.sampling(num_rows)
    tokens = torch.tensor(PROMPT).expand(num_rows, -1)
    laws = []
    for step in range(NUM_DRAFT_TOKENS):
        scores = draft.scores(tokens, 1, sampling)
        positions = _positions(step, 1, num_rows)
        if rule == "coupled":
            drawn = pick_shared(scores, sampling, positions)
        else:
            drawn = draw_draft(scores, sampling, positions, torch.zeros(num_rows, dtype=torch.int64))
        tokens = torch.cat([tokens, drawn], dim=1)
        laws.append(probabilities(scores, sampling))
    counts = torch.full((num_rows,), NUM_DRAFT_TOKENS)
    stated = None if claims_point_mass or rule == "coupled" else torch.cat(laws, dim=1)
    return Draft(tokens[:, len(PROMPT) :], counts, stated)


def _written(target: Language, drafts: Draft, rule: str) -> Counter[tuple[int, ...]]:
    """The first three tokens of every row: one round, and the target's own picks where the round gave fewer."""
    num_rows = len(drafts.token_ids_BK)
    sampling = target.sampling(num_rows)
    check = verify_coupled if rule == "coupled" else verify_rejection
    tokens = torch.cat([torch.tensor(PROMPT).expand(num_rows, -1), drafts.token_ids_BK], dim=1)
    scores = target.scores(tokens, NUM_DRAFT_TOKENS + 1, sampling)
    verdict = check(scores, drafts, sampling, _positions(0, NUM_DRAFT_TOKENS + 1, num_rows))
    tokens = torch.cat([tokens, tokens[:, -1:]], dim=1)
    ends = len(PROMPT) + verdict.num_accepted_B
    tokens.scatter_(1, ends[:, None], verdict.next_token_B[:, None])
    for step in range(1, NUM_DRAFT_TOKENS + 1):
        behind = tokens[:, : len(PROMPT) + step]
        none = Draft(tokens[:, :0], torch.zeros(num_rows, dtype=torch.long))
        own = check(target.scores(behind, 1, sampling), none, sampling, _positions(step, 1, num_rows)).next_token_B
        is_missing = ends < len(PROMPT) + step
        tokens[:, len(PROMPT) + step] = torch.where(is_missing, own, tokens[:, len(PROMPT) + step])
    return Counter(map(tuple, tokens[:, len(PROMPT) :].tolist()))


def _writes_the_targets_law(target: Language, draft: Language, rule: str, **options: bool) -> bool:
    return is_plausible(_written(target, _draw_drafts(draft, rule, **options), rule), target.law(3))


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("name", PARAMS)
def test_drawn_tokens_follow_the_targets_law(name, rule):
    assert _writes_the_targets_law(*_pair(name), rule)


@pytest.mark.parametrize("name", PARAMS)
def test_drawn_tokens_follow_the_targets_law_where_the_draft_is_a_point_mass(name):
    target, draft = _pair(name)
    fixed = Draft(torch.tensor([[2, 3]]).expand(NUM_ROWS, -1), torch.full((NUM_ROWS,), 2))
    assert is_plausible(_written(target, fixed, "rejection"), target.law(3))
    assert _writes_the_targets_law(target, draft, "rejection", claims_point_mass=True)


def test_drawn_tokens_follow_the_targets_law_where_rows_have_shorter_drafts():
    target, draft = _pair("plain")
    full = _draw_drafts(draft, "rejection")
    ragged = Draft(full.token_ids_BK, torch.arange(NUM_ROWS) % 3, full.probs_BKV)
    assert is_plausible(_written(target, ragged, "rejection"), target.law(3))


def test_coupled_tokens_are_those_of_no_draft_at_all():
    target, draft = _pair("penalties")
    nothing = Draft(torch.zeros(500, NUM_DRAFT_TOKENS, dtype=torch.long), torch.zeros(500, dtype=torch.long))
    assert _written(target, _draw_drafts(draft, "coupled", 500), "coupled") == _written(target, nothing, "coupled")


def _plant(monkeypatch, bug: str) -> None:
    """One bug in the real verifier."""
    real_law, real_uniform = verify.rejection_law, uniform
    if bug == "p and q swapped":
        # The acceptance test with the quotient upside down.
        def law(probs, draft):
            if draft.token_ids_BK.shape[1] == 0:
                return real_law(probs, draft)
            upside_down = Draft(draft.token_ids_BK, draft.num_draft_tokens_B, probs[:, :-1])
            accept, _ = real_law(torch.cat([draft.probs_BKV.double(), probs[:, -1:]], 1), upside_down)
            return accept, real_law(probs, draft)[1]

        monkeypatch.setattr(verify, "rejection_law", law)
    elif bug == "recovered from p":
        monkeypatch.setattr(verify, "rejection_law", lambda probs, draft: (real_law(probs, draft)[0], probs))
    elif bug == "stale q":

        def law(probs, draft):
            stale = None if draft.probs_BKV is None else draft.probs_BKV.roll(1, dims=1)
            return real_law(probs, Draft(draft.token_ids_BK, draft.num_draft_tokens_B, stale))

        monkeypatch.setattr(verify, "rejection_law", law)
    elif bug == "accept and recover share noise":
        monkeypatch.setattr(verify, "uniform", lambda keys, positions, _: real_uniform(keys, positions, Stream.RECOVER))
    elif bug == "draft and accept share noise":
        monkeypatch.setattr(verify, "uniform", lambda keys, positions, _: real_uniform(keys, positions, Stream.DRAFT))
    elif bug == "draft and target share noise under rejection":
        # A drafter coupled to the recovered token: fine for accept-iff-equal, wrong for u < p / q.
        def inverse_cdf(law, _):
            keys = Language.random(6, 1, SamplingParams()).sampling(len(law)).keys_B
            return (law.log() + gumbel(keys, _positions(0, 1, len(law)), 6, Stream.DRAFT)[:, 0]).argmax(-1)

        monkeypatch.setattr(verify, "_inverse_cdf", inverse_cdf)
    elif bug == "accepts everything":
        monkeypatch.setattr(verify, "rejection_law", lambda probs, draft: (1.0 + 0 * real_law(probs, draft)[0], probs))
    elif bug == "soft greedy":
        monkeypatch.setattr(verify, "probabilities", lambda scores, _: scores.softmax(-1))
    else:
        raise AssertionError(bug)


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("p and q swapped", "plain"),
        ("recovered from p", "plain"),
        ("recovered from p", "top_k_top_p"),
        ("stale q", "plain"),
        ("stale q", "penalties"),
        ("accept and recover share noise", "plain"),
        ("draft and accept share noise", "plain"),
        ("draft and target share noise under rejection", "plain"),
        ("accepts everything", "top_k_top_p"),
        ("soft greedy", "greedy"),
    ],
)
def test_a_planted_bug_is_caught(monkeypatch, bug, name):
    target, draft = _pair(name)
    drafts, law = _draw_drafts(draft, "rejection"), target.law(3)
    assert is_plausible(_written(target, drafts, "rejection"), law)
    _plant(monkeypatch, bug)
    assert not is_plausible(_written(target, drafts, "rejection"), law)


@pytest.mark.parametrize("bug", ["noise without the token", "half the noise"])
def test_a_planted_bug_in_coupled_verification_is_caught(monkeypatch, bug):
    real = noise._gumbel_of

    def broken(keys, least, holders, token_ids):
        if bug == "noise without the token":
            return real(keys, least, holders, torch.zeros_like(token_ids))
        return real(keys, least, holders, token_ids) / 2

    monkeypatch.setattr(noise, "_gumbel_of", broken)
    assert not _writes_the_targets_law(*_pair("plain"), "coupled")


def test_a_draft_that_shares_the_noise_is_accepted_more_often_than_one_that_does_not():
    target, draft = _pair("plain")
    sampling = target.sampling(NUM_ROWS)

    def mean_accepted(token_ids_BK: torch.Tensor) -> float:
        tokens = torch.cat([torch.tensor(PROMPT).expand(NUM_ROWS, -1), token_ids_BK], dim=1)
        drafts = Draft(token_ids_BK, torch.full((NUM_ROWS,), NUM_DRAFT_TOKENS))
        verdict = verify_coupled(target.scores(tokens, 3, sampling), drafts, sampling, _positions(0, 3))
        return float(verdict.num_accepted_B.double().mean())

    own_noise, shared_noise = (_draw_drafts(draft, rule).token_ids_BK for rule in ("rejection", "coupled"))
    assert mean_accepted(own_noise) < 0.8 * mean_accepted(shared_noise)


@pytest.mark.parametrize("rule", [verify_coupled, verify_rejection])
def test_greedy_rows_accept_exactly_the_leading_tokens_that_are_best(rule):
    target, _ = _pair("greedy")
    best = target.logits_VV.argmax(-1).tolist()
    first, second, third = best[1], best[best[1]], best[best[best[1]]]
    wrong = next(t for t in range(6) if t not in (first, second, third))
    tokens = torch.tensor([[first, second], [first, wrong], [wrong, second], [first, second], [first, second]])
    drafts = Draft(tokens, torch.tensor([2, 2, 2, 1, 0]))
    sampling = target.sampling(5)
    behind = torch.cat([torch.tensor(PROMPT).expand(5, -1), tokens], dim=1)
    verdict = rule(target.scores(behind, 3, sampling), drafts, sampling, _positions(0, 3, 5))
    assert verdict.num_accepted_B.tolist() == [2, 1, 0, 1, 0]
    assert verdict.next_token_B.tolist() == [third, second, first, second, first]


@pytest.mark.parametrize("extreme", [0.0, 2.0**-54, 1 - 2.0**-53])
def test_impossible_tokens_are_not_drawn_at_the_ends_of_the_unit_interval(monkeypatch, extreme):
    """The first and the last token cannot be drawn, and cannot be accepted."""
    scores = torch.tensor([[[-float("inf"), 0.0, 0.0, -float("inf")]] * 2])
    language = Language(torch.zeros(4, 4), SamplingParams())
    monkeypatch.setattr(verify, "uniform", lambda keys, positions, _: torch.full(positions.shape, extreme).double())
    for drafted in (0, 3):
        drafts = Draft(torch.tensor([[drafted]]), torch.tensor([1]), torch.full((1, 1, 4), 0.25))
        verdict = verify_rejection(scores, drafts, language.sampling(1), _positions(0, 2, 1))
        assert verdict.num_accepted_B.item() == 0
        assert verdict.next_token_B.item() in (1, 2)


def test_an_accepted_token_has_positive_probability_even_where_the_noise_is_zero(monkeypatch):
    scores = torch.tensor([[[-float("inf"), 0.0, 0.0, 0.0]] * 2])
    monkeypatch.setattr(verify, "uniform", lambda keys, positions, _: torch.zeros(positions.shape).double())
    drafts = Draft(torch.tensor([[0]]), torch.tensor([1]))
    verdict = verify_rejection(
        scores, drafts, Language(torch.zeros(4, 4), SamplingParams()).sampling(1), _positions(0, 2, 1)
    )
    assert verdict.num_accepted_B.item() == 0


def test_close_calls_are_reported_at_the_first_position_where_the_best_two_nearly_tie():
    scores = torch.tensor([[[5.0, 1, 0], [2.0, 2 + 1e-6, 0], [3.0, 1, 3]], [[5.0, 1, 0]] * 3])
    sampling = Language(torch.zeros(3, 3), SamplingParams(temperature=0)).sampling(2)
    drafts = Draft(torch.tensor([[0, 1], [0, 0]]), torch.tensor([2, 2]))
    assert verify_coupled(scores, drafts, sampling, _positions(0, 3, 2), 1e-4).first_close_call_B.tolist() == [1, 3]
    assert verify_coupled(scores, drafts, sampling, _positions(0, 3, 2)).first_close_call_B.tolist() == [3, 3]


def test_the_margin_of_a_close_call_is_in_logits_whatever_the_temperature():
    logits = torch.tensor([[[1.0, 0.0]]])
    nothing = Draft(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    for temperature in (0.1, 1.0, 10.0):
        sampling = Language(torch.zeros(2, 2), SamplingParams(temperature=temperature)).sampling(1)
        noise_B1V = gumbel(sampling.keys_B, _positions(0, 1, 1), 2, Stream.SHARED)
        margin = float((logits / temperature + noise_B1V).diff(dim=-1).abs() * temperature)
        for factor, expected in ((0.99, 1), (1.01, 0)):
            verdict = verify_coupled(logits / temperature, nothing, sampling, _positions(0, 1, 1), margin * factor)
            assert verdict.first_close_call_B.item() == expected


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone():
    target, draft = _pair("plain")
    for rule in ("coupled", "rejection"):
        drafts = _draw_drafts(draft, rule, 4)
        sampling = target.sampling(4)
        tokens = torch.cat([torch.tensor(PROMPT).expand(4, -1), drafts.token_ids_BK], dim=1)
        scores = target.scores(tokens, 3, sampling)
        check = verify_coupled if rule == "coupled" else verify_rejection
        clean = check(scores, drafts, sampling, _positions(0, 3, 4))
        for poison in (float("nan"), float("inf"), -float("inf")):
            dirty = scores.clone()
            dirty[1] = poison
            verdict = check(dirty, drafts, sampling, _positions(0, 3, 4))
            for row in (0, 2, 3):
                assert verdict.next_token_B[row] == clean.next_token_B[row]
                assert verdict.num_accepted_B[row] == clean.num_accepted_B[row]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_verdict_does_not_depend_on_the_other_rows(rule):
    target, draft = _pair("penalties")
    check = verify_coupled if rule == "coupled" else verify_rejection
    drafts = _draw_drafts(draft, rule, 50)
    tokens = torch.cat([torch.tensor(PROMPT).expand(50, -1), drafts.token_ids_BK], dim=1)
    sampling = target.sampling(50)
    together = check(target.scores(tokens, 3, sampling), drafts, sampling, _positions(0, 3, 50))
    for row in range(0, 50, 7):
        one = slice(row, row + 1)
        law = None if drafts.probs_BKV is None else drafts.probs_BKV[one]
        alone_sampling = target.sampling(1, first_row=row)
        alone = check(
            target.scores(tokens[one], 3, alone_sampling),
            Draft(drafts.token_ids_BK[one], drafts.num_draft_tokens_B[one], law),
            alone_sampling,
            _positions(0, 3, 1),
        )
        assert alone.num_accepted_B.item() == together.num_accepted_B[row]
        assert alone.next_token_B.item() == together.next_token_B[row]


def test_first_stop_counts_up_to_and_with_the_first_stop_id():
    tokens = torch.tensor([[5, 6, 7], [9, 5, 9], [1, 2, 9], [0, 0, 0]])
    assert first_stop(tokens, torch.tensor([[9, -1]] * 4)).tolist() == [3, 1, 3, 3]
    assert first_stop(tokens, torch.tensor([[6, 5], [5, -1], [2, 1], [-1, -1]])).tolist() == [1, 2, 1, 3]
