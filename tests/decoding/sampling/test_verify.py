"""What the verifiers really draw: right counts, right distribution (chi-square), and planted bugs that are seen."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from decoding import SamplingParams, noise
from decoding.noise import GumbelNoise, Stream, uniform
from decoding.sampling import rules
from decoding.sampling.distribution import probabilities
from decoding.sampling.judging import verify_rows
from decoding.sampling.rules import acceptance, draw_draft, recovery, verify_coupled, verify_rejection
from decoding.sampling.verdicts import Draft, Verdicts
from tests.decoding.toy import PROMPT, Language, is_plausible, rejection_rule, speculative_distribution

NUM_ROWS = 40_000
NUM_DRAFT_TOKENS = 2
RULES = ["coupled", "rejection"]
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


def _behind_the_prompt(tokens_BK: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor(PROMPT).expand(len(tokens_BK), -1), tokens_BK], dim=1)


def _no_draft(num_rows: int) -> Draft:
    return Draft(torch.zeros(num_rows, 0, dtype=torch.long), torch.zeros(num_rows, dtype=torch.long))


def _draw_drafts(draft: Language, rule: str, num_rows: int = NUM_ROWS, claims_point_mass: bool = False) -> Draft:
    """Return drafts that are drawn token by token, as the model drafter does it."""
    rows = draft.rows(num_rows)
    drafted_BK = torch.zeros(num_rows, 0, dtype=torch.long)
    stated = []
    for step in range(NUM_DRAFT_TOKENS):
        tokens = _behind_the_prompt(drafted_BK)
        scores = draft.scores(tokens, 1, rows.sampling)
        if rule == "coupled":
            drawn = rows.pick(draft.logits(tokens, 1), drafted_BK, step).token_ids_BJ
        else:
            no_lengths = torch.zeros(num_rows, dtype=torch.int64)
            drawn = draw_draft(scores, rows.sampling, rows.positions(step, 1), no_lengths)
        drafted_BK = torch.cat([drafted_BK, drawn], dim=1)
        stated.append(probabilities(scores, rows.sampling))
    counts = torch.full((num_rows,), NUM_DRAFT_TOKENS)
    probs = None if claims_point_mass or rule == "coupled" else torch.cat(stated, dim=1)
    return Draft(drafted_BK, counts, probs)


def _verdict(target: Language, drafts: Draft, rule: str, before: torch.Tensor | None = None) -> Verdicts:
    """Return the verdict that a round gives on drafts after the prompt and the tokens `before` them."""
    drafted_BK = drafts.token_ids_BK
    before_BK = drafted_BK[:, :0] if before is None else before
    tokens_BK = torch.cat([before_BK, drafted_BK], dim=1)
    logits = target.logits(_behind_the_prompt(tokens_BK), drafted_BK.shape[1] + 1)
    rows = target.rows(len(drafted_BK), rule)
    behind = zip(rows.sequences, before_BK.expand(len(drafted_BK), -1).tolist(), strict=True)
    sequences = tuple(replace(row, output_token_ids=[*row.output_token_ids, *tokens]) for row, tokens in behind)
    return verify_rows(replace(rows, sequences=sequences), drafts, logits)


def _written(target: Language, drafts: Draft, rule: str) -> Counter[tuple[int, ...]]:
    """Count the first three tokens of every row: one round, and plain rounds where that gave fewer tokens."""
    num_rows = len(drafts.token_ids_BK)
    verdict = _verdict(target, drafts, rule)
    tokens = torch.cat([drafts.token_ids_BK, drafts.token_ids_BK[:, -1:]], dim=1)
    tokens.scatter_(1, verdict.num_accepted_B[:, None], verdict.next_token_B[:, None])
    for step in range(1, NUM_DRAFT_TOKENS + 1):
        own = _verdict(target, _no_draft(num_rows), rule, before=tokens[:, :step]).next_token_B
        tokens[:, step] = torch.where(verdict.num_accepted_B < step, own, tokens[:, step])
    return Counter(map(tuple, tokens.tolist()))


def _writes_the_targets_distribution(target: Language, draft: Language, rule: str, **options: bool) -> bool:
    return is_plausible(_written(target, _draw_drafts(draft, rule, **options), rule), target.distribution(3))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PARAMS)
def test_drawn_tokens_follow_the_targets_distribution(name, rule):
    assert _writes_the_targets_distribution(*_pair(name), rule)


@pytest.mark.parametrize("name", PARAMS)
def test_drawn_tokens_follow_the_targets_distribution_where_the_draft_is_a_point_mass(name):
    target, draft = _pair(name)
    fixed = Draft(torch.tensor([[2, 3]]).expand(NUM_ROWS, -1), torch.full((NUM_ROWS,), 2))
    assert is_plausible(_written(target, fixed, "rejection"), target.distribution(3))
    assert _writes_the_targets_distribution(target, draft, "rejection", claims_point_mass=True)


def test_drawn_tokens_follow_the_targets_distribution_where_rows_have_shorter_drafts():
    target, draft = _pair("plain")
    full = _draw_drafts(draft, "rejection")
    ragged = replace(full, num_draft_tokens_B=torch.arange(NUM_ROWS) % 3)
    assert is_plausible(_written(target, ragged, "rejection"), target.distribution(3))


@pytest.mark.parametrize("name", [name for name in PARAMS if name != "greedy"])
def test_unadjusted_tokens_do_not_follow_the_targets_distribution_but_the_one_of_their_rule(name):
    """The lossless rules' own test sees it, which is why RULES does not have it."""
    target, draft = _pair(name)
    written = _written(target, _draw_drafts(draft, "unadjusted"), "unadjusted")
    assert not is_plausible(written, target.distribution(3))

    def first_round_only(drafts: Draft) -> torch.Tensor:  # as in `_written`
        return drafts.num_draft_tokens_B * (drafts.token_ids_BK.shape[1] == NUM_DRAFT_TOKENS)

    rule = partial(rejection_rule, verification="unadjusted")
    law = speculative_distribution(target, draft, NUM_DRAFT_TOKENS, 3, rule, shorten=first_round_only)
    assert is_plausible(written, law)


@pytest.mark.parametrize("claims_point_mass", [False, True])
def test_unadjusted_tokens_at_temperature_zero_are_the_targets(claims_point_mass):
    target, draft = _pair("greedy")
    written = _written(target, _draw_drafts(draft, "unadjusted", 50, claims_point_mass), "unadjusted")
    assert written == Counter(dict.fromkeys(target.distribution(3), 50))


def _rule(probs, draft):
    """The rule of the verifier, from its two parts as they are before a bug is planted."""
    every_BJ = torch.arange(probs.shape[1]).expand(len(probs), -1)
    return acceptance(probs, draft), recovery(probs, draft, every_BJ)


def _planted(rule):
    """The verifier's two parts with another rule."""

    def recovered(probs, draft, stops_BM):
        return rule(probs.double(), draft)[1].gather(1, stops_BM[..., None].expand(-1, -1, probs.shape[-1]))

    return {"acceptance": lambda probs, draft: rule(probs.double(), draft)[0], "recovery": recovered}


def _upside_down(probs, draft):
    """The acceptance test with the quotient upside down."""
    if draft.token_ids_BK.shape[1] == 0:
        return _rule(probs, draft)
    stated = torch.cat([draft.probs_BKV.double(), probs[:, -1:]], 1)
    return _rule(stated, replace(draft, probs_BKV=probs[:, :-1]))[0], _rule(probs, draft)[1]


def _stale(probs, draft):
    stale = None if draft.probs_BKV is None else draft.probs_BKV.roll(1, dims=1)
    return _rule(probs, replace(draft, probs_BKV=stale))


def _coupled_to_the_draft(probs, _):
    """A drafter coupled to the recovered token: fine for accept-iff-equal, wrong for u < p / q."""
    keys = Language.random(6, 1, SamplingParams()).sampling(len(probs)).keys_B
    noise_BJV = GumbelNoise.draw(keys, _positions(0, 1, len(probs)), 6, Stream.DRAFT).dense(6)
    return (probs.log() + noise_BJV[:, 0]).argmax(-1)


BUGS = {  # what of the real verifier each replaces, and by what
    "p and q swapped": _planted(_upside_down),
    "recovered from p": _planted(lambda probs, draft: (_rule(probs, draft)[0], probs)),
    "stale q": _planted(_stale),
    "accept and recover share noise": {"uniform": lambda keys, positions, _: uniform(keys, positions, Stream.RECOVER)},
    "draft and accept share noise": {"uniform": lambda keys, positions, _: uniform(keys, positions, Stream.DRAFT)},
    "draft and target share noise under rejection": {"_inverse_cdf": _coupled_to_the_draft},
    "accepts everything": _planted(lambda p, draft: (1.0 + 0 * _rule(p, draft)[0], p)),
    "soft greedy": {"probabilities": lambda scores, _: scores.softmax(-1)},
}


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
    drafts, expected = _draw_drafts(draft, "rejection"), target.distribution(3)
    assert is_plausible(_written(target, drafts, "rejection"), expected)
    for part, broken in BUGS[bug].items():
        monkeypatch.setattr(rules, part, broken)
    assert not is_plausible(_written(target, drafts, "rejection"), expected)


@pytest.mark.parametrize("bug", ["noise without the token", "half the noise"])
def test_a_planted_bug_in_the_shared_noise_is_caught(monkeypatch, bug):
    real = noise._gumbel_of

    def broken(keys, least, holders, token_ids):
        if bug == "noise without the token":
            return real(keys, least, holders, torch.zeros_like(token_ids))
        return real(keys, least, holders, token_ids) / 2

    monkeypatch.setattr(noise, "_gumbel_of", broken)
    monkeypatch.setenv("DRAY_KERNELS", "off")  # the kernel has its own, and equals torch's (tests/decoding/cpu)
    assert not _writes_the_targets_distribution(*_pair("plain"), "coupled")


@pytest.mark.parametrize("bug", ["accepts what differs", "the pick of the first position follows"])
def test_a_planted_bug_in_accepting_what_is_equal_is_caught(monkeypatch, bug):
    """The bugs are in what becomes of the picks; the noise and the picks themselves are right."""

    def broken(picks, draft, sampling, close_call):
        verdict = verify_coupled(picks, draft, sampling, close_call)
        if bug == "accepts what differs":
            accepted_B = draft.num_draft_tokens_B
            next_B = picks.token_ids_BJ.gather(1, accepted_B[:, None])[:, 0]
            return replace(verdict, num_accepted_B=accepted_B, next_token_B=next_B)
        return replace(verdict, next_token_B=picks.token_ids_BJ[:, 0])

    target, draft = _pair("plain")
    drafts = _draw_drafts(draft, "coupled")
    monkeypatch.setattr("decoding.sampling.rules.verify_coupled", broken)
    assert not is_plausible(_written(target, drafts, "coupled"), target.distribution(3))


def test_a_draft_that_shares_the_noise_is_accepted_more_often_than_one_that_does_not():
    target, draft = _pair("plain")

    def mean_accepted(token_ids_BK: torch.Tensor) -> float:
        drafts = Draft(token_ids_BK, torch.full((NUM_ROWS,), NUM_DRAFT_TOKENS))
        return float(_verdict(target, drafts, "coupled").num_accepted_B.double().mean())

    own_noise, shared_noise = (_draw_drafts(draft, rule).token_ids_BK for rule in ("rejection", "coupled"))
    assert mean_accepted(own_noise) < 0.8 * mean_accepted(shared_noise)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_rows_accept_exactly_the_leading_tokens_that_are_best(rule):
    target, _ = _pair("greedy")
    best = target.logits_VV.argmax(-1).tolist()
    first, second, third = best[1], best[best[1]], best[best[best[1]]]
    wrong = next(t for t in range(6) if t not in (first, second, third))
    tokens = torch.tensor([[first, second], [first, wrong], [wrong, second], [first, second], [first, second]])
    verdict = _verdict(target, Draft(tokens, torch.tensor([2, 2, 2, 1, 0])), rule)
    assert verdict.num_accepted_B.tolist() == [2, 1, 0, 1, 0]
    assert verdict.next_token_B.tolist() == [third, second, first, second, first]


@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_is_not_finite_is_reported_and_leaves_its_neighbours_alone(rule):
    target, draft = _pair("plain")
    drafts, rows = _draw_drafts(draft, rule, 4), target.rows(4, rule)
    logits = target.logits(_behind_the_prompt(drafts.token_ids_BK), 3)
    clean = verify_rows(rows, drafts, logits)
    for poison in (float("nan"), float("inf"), -float("inf")):
        dirty = logits.clone()
        dirty[1] = poison
        verdict = verify_rows(rows, drafts, dirty)
        assert verdict.is_finite_B.tolist() == [True, False, True, True]
        for row in (0, 2, 3):
            assert verdict.next_token_B[row] == clean.next_token_B[row]
            assert verdict.num_accepted_B[row] == clean.num_accepted_B[row]


@pytest.mark.parametrize("rule", RULES)
def test_a_verdict_does_not_depend_on_the_other_rows(rule):
    target, draft = _pair("penalties")
    drafts = _draw_drafts(draft, rule, 50)
    logits = target.logits(_behind_the_prompt(drafts.token_ids_BK), 3)
    together = _verdict(target, drafts, rule)
    for row in range(0, 50, 7):
        one = slice(row, row + 1)
        probs = None if drafts.probs_BKV is None else drafts.probs_BKV[one]
        draft_alone = Draft(drafts.token_ids_BK[one], drafts.num_draft_tokens_B[one], probs)
        rows = target.rows(1, rule, first_row=row)
        alone = verify_rows(rows, draft_alone, logits[one])
        assert alone.num_accepted_B.item() == together.num_accepted_B[row]
        assert alone.next_token_B.item() == together.next_token_B[row]


@pytest.mark.parametrize("extreme", [0.0, 2.0**-54, 1 - 2.0**-53])
def test_impossible_tokens_are_not_drawn_at_the_ends_of_the_unit_interval(monkeypatch, extreme):
    """The first and the last token cannot be drawn, and cannot be accepted."""
    scores = torch.tensor([[[-float("inf"), 0.0, 0.0, -float("inf")]] * 2])
    language = Language(torch.zeros(4, 4), SamplingParams())
    monkeypatch.setattr(rules, "uniform", lambda keys, positions, _: torch.full(positions.shape, extreme).double())
    for drafted, stated in product((0, 3), (torch.full((1, 1, 4), 0.25), None)):  # None: a point mass
        drafts = Draft(torch.tensor([[drafted]]), torch.tensor([1]), stated)
        verdict = verify_rejection(scores, drafts, language.sampling(1), _positions(0, 2, 1), drafts)
        assert verdict.num_accepted_B.item() == 0
        assert verdict.next_token_B.item() in (1, 2)


class _LargestTensor(TorchDispatchMode):
    """The most bytes that a float64 tensor has."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            self.num_bytes = max(self.num_bytes, found.nbytes)
        return found


def test_rejection_takes_rows_in_parts_that_fit_into_memory_and_decides_as_with_all_at_once(monkeypatch):
    target, draft = _pair("plain")
    drafts, rows = _draw_drafts(draft, "rejection", 300), target.rows(300, "rejection")
    scores_BJV = target.scores(_behind_the_prompt(drafts.token_ids_BK), 3, rows.sampling)
    whole = verify_rejection(scores_BJV, drafts, rows.sampling, rows.positions(0, 3), drafts)
    for most in (1, 5_000):
        monkeypatch.setattr(rules, "_BYTES_AT_ONCE", most)
        with _LargestTensor() as largest:
            parts = verify_rejection(scores_BJV, drafts, rows.sampling, rows.positions(0, 3), drafts)
        assert largest.num_bytes <= max(most, 6 * 8)  # one row's law is the least
        for name in vars(whole):
            assert torch.equal(getattr(parts, name), getattr(whole, name)), name


def test_close_calls_are_reported_at_the_first_position_where_the_best_two_nearly_tie():
    logits = torch.tensor([[[5.0, 1, 0], [2.0, 2 + 1e-6, 0], [3.0, 1, 3]], [[5.0, 1, 0]] * 3])
    rows = Language(torch.zeros(3, 3), SamplingParams(temperature=0)).rows(2)
    drafts = Draft(torch.tensor([[0, 1], [0, 0]]), torch.tensor([2, 2]))
    for margin, expected in ((1e-4, [1, 3]), (0.0, [3, 3])):
        verdict = verify_rows(rows, drafts, logits, margin)
        assert verdict.first_close_call_B.tolist() == expected


def test_the_margin_of_a_close_call_is_in_logits_whatever_the_temperature():
    logits, nothing = torch.tensor([[[1.0, 0.0]]]), _no_draft(1)
    for temperature in (0.1, 1.0, 10.0):
        rows = Language(torch.zeros(2, 2), SamplingParams(temperature=temperature)).rows(1)
        noise_11V = GumbelNoise.draw(rows.sampling.keys_B, _positions(0, 1, 1), 2, Stream.SHARED).dense(2)
        margin = float((logits / temperature + noise_11V).diff(dim=-1).abs() * temperature)
        for factor, expected in ((0.99, 1), (1.01, 0)):
            verdict = verify_rows(rows, nothing, logits, margin * factor)
            assert verdict.first_close_call_B.item() == expected


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("position", range(NUM_DRAFT_TOKENS + 1))
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_row_is_not_finite_if_one_of_its_positions_is_not(rule, position, poison):
    """The next token would lie outside the vocabulary where none can be drawn."""
    target, draft = _pair("plain")
    drafts, rows = _draw_drafts(draft, rule, 2), target.rows(2, rule)
    logits = target.logits(_behind_the_prompt(drafts.token_ids_BK), NUM_DRAFT_TOKENS + 1).clone()
    logits[1, position] = poison
    verdict = verify_rows(rows, drafts, logits)
    assert verdict.is_finite_B.tolist() == [True, False]


@pytest.mark.parametrize("rule", RULES)
def test_a_row_whose_tokens_are_all_forbidden_is_not_finite(rule):
    params = SamplingParams(min_tokens=2, stop_token_ids=(0, 1, 2))
    language = Language(torch.zeros(3, 3), params)
    nothing = _no_draft(1)
    verdict = verify_rows(language.rows(1, rule), nothing, torch.zeros(1, 1, 3))
    assert verdict.is_finite_B.tolist() == [False]
