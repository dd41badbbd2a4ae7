"""A toy language small enough to enumerate: the next token's logits depend on the last token only.

Everything that turns logits into distributions is the real code: `process_logits`, `probabilities`, `rejection_rule`,
and the verifiers themselves. Shapes: N paths or rows, K drafted tokens, J = K + 1 positions, V vocabulary, L tokens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import torch
from scipy import stats

from decoding import SamplingParams
from decoding.choices import LOSSY, Verification
from decoding.noise import noise_key
from decoding.sampling.distribution import SamplingBatch, first_stop, keep_best, probabilities, process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.rules import RULES, acceptance, recovery
from decoding.sampling.token_history import TokenHistory
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

PROMPT = (1, 0, 1)
FALSE_ALARM = 1e-7
Distribution = dict[tuple[int, ...], float]
RejectionRule = Callable[[torch.Tensor, Draft], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Language:
    """Logits after each token, [V, V]."""

    logits_VV: torch.Tensor
    params: SamplingParams
    most_candidates: int = 0  # of a draft that draws from its best tokens only; 0: from all
    _samplings: dict[tuple[int, int], SamplingBatch] = field(default_factory=dict, init=False)  # 40,000 rows take long

    @classmethod
    def random(cls, vocab_size: int, seed: int, params: SamplingParams, spread: float = 1.5) -> "Language":
        """Return a language far from uniform, so that a wrong distribution is far from the right one."""
        generator = torch.Generator().manual_seed(seed)
        return cls(spread * torch.randn(vocab_size, vocab_size, generator=generator), params)

    @property
    def vocab_size(self) -> int:
        return len(self.logits_VV)

    def sampling(self, num_rows: int, first_row: int = 0) -> SamplingBatch:
        """Return the parameters of as many rows, each with noise of its own."""
        if (num_rows, first_row) not in self._samplings:
            self._samplings[num_rows, first_row] = SamplingBatch.build(
                params=[self.params] * num_rows,
                keys=[noise_key(5, first_row + row, 0) for row in range(num_rows)],
                stop_ids=[frozenset(self.params.stop_token_ids)] * num_rows,
                prompt_lengths=[len(PROMPT)] * num_rows,
                device=torch.device("cpu"),
            )
        return self._samplings[num_rows, first_row]

    def rows(self, num_rows: int, rule: Verification = "coupled", first_row: int = 0) -> Rows:
        """Return the rows of a round, all of which have committed the prompt and nothing else."""
        sequence = Sequence.create(PROMPT, self.params)
        return Rows((sequence,) * num_rows, self.sampling(num_rows, first_row), (0,) * num_rows, RULES[rule])

    def logits(self, tokens_NL: torch.Tensor, num_positions: int) -> torch.Tensor:
        """Return the logits [N, J, V] after each of the last J tokens."""
        return self.logits_VV[tokens_NL[:, -num_positions:]]

    def scores(self, tokens_NL: torch.Tensor, num_positions: int, sampling: SamplingBatch) -> torch.Tensor:
        """Return the scores [N, J, V] after each of the last J tokens."""
        num_rows, length = tokens_NL.shape
        lengths_J = torch.arange(length - num_positions, length) + 1
        history = TokenHistory(tokens_NL, torch.full((num_rows,), len(PROMPT)), lengths_J.expand(num_rows, -1))
        scores_NJV = process_logits(self.logits(tokens_NL, num_positions), sampling, history)
        return keep_best(scores_NJV, self.most_candidates)

    def probs(self, tokens_NL: torch.Tensor, num_positions: int) -> torch.Tensor:
        """Return the distributions in float64, [N, J, V], summing to 1 as exactly as float64 can."""
        sampling = self.sampling(len(tokens_NL))
        probs_NJV = probabilities(self.scores(tokens_NL, num_positions, sampling), sampling).double()
        return probs_NJV / probs_NJV.sum(-1, keepdim=True)

    def distribution(self, num_tokens: int) -> Distribution:
        """Return what plain decoding writes: the distribution of the next tokens, cut after a stop id."""
        found: Distribution = {}
        stack = [((), 1.0)]
        while stack:
            path, weight = stack.pop()
            if len(path) == num_tokens or self.is_ended(path):
                found[path] = found.get(path, 0.0) + weight
                continue
            probs_V = self.probs(torch.tensor([PROMPT + path]), 1)[0, 0].tolist()
            stack += [((*path, token), weight * p) for token, p in enumerate(probs_V) if p > 0]
        return found

    def is_ended(self, path: tuple[int, ...]) -> bool:
        return any(token in self.params.stop_token_ids for token in path)


def rejection_rule(
    target_probs_BJV: torch.Tensor, draft: Draft, verification: Verification = "rejection"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the drafted tokens' acceptance probabilities [B, K], and what the token after a stop at j is drawn from.

    The latter are distributions [B, J, V]. Both come from what `verify_rejection` draws with, so enumerating them
    enumerates the verifier.
    """
    removed = draft
    if verification in LOSSY:
        removed = replace(draft, num_draft_tokens_B=torch.zeros_like(draft.num_draft_tokens_B))
    num_rows, num_positions = target_probs_BJV.shape[:2]
    every_BJ = torch.arange(num_positions, device=target_probs_BJV.device).expand(num_rows, -1)
    return acceptance(target_probs_BJV, draft), recovery(target_probs_BJV, removed, every_BJ)


def all_drafts(
    draft: Language, num_draft_tokens: int, path: tuple[int, ...], is_point_mass: bool
) -> tuple[Draft, list[float]]:
    """Return every draft of K tokens after PROMPT + path, one a row, and the probability of each."""
    token_ids_NK = torch.tensor(list(product(range(draft.vocab_size), repeat=num_draft_tokens)), dtype=torch.long)
    tokens_NL = torch.cat([torch.tensor(PROMPT + path).expand(len(token_ids_NK), -1), token_ids_NK], dim=1)
    probs_NKV = draft.probs(tokens_NL, num_draft_tokens + 1)[:, :-1]
    # A point mass may be chosen in any way; here as randomly as a careless drafter would draw it.
    weights = probs_NKV.gather(-1, token_ids_NK[:, :, None])[..., 0].prod(-1).tolist()
    counts = torch.full((len(token_ids_NK),), num_draft_tokens)
    return Draft(token_ids_NK, counts, None if is_point_mass else probs_NKV), weights


def speculative_distribution(
    target: Language,
    draft: Language,
    num_draft_tokens: int,
    num_tokens: int,
    rule: RejectionRule,
    *,
    is_point_mass: bool = False,
    shorten: Callable[[Draft], torch.Tensor] = lambda draft: draft.num_draft_tokens_B,
) -> Distribution:
    """Return the distribution of the next tokens under speculation: every path of draft, accept and recover."""
    stop_ids_1S = torch.tensor([list(target.params.stop_token_ids) or [-1]])
    found: Distribution = {}
    stack: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while stack:
        path, weight = stack.pop()
        if len(path) >= num_tokens or target.is_ended(path):
            found[path] = found.get(path, 0.0) + weight
            continue
        # As the engine: never more draft tokens than can be kept, and none behind a stop id.
        length = min(num_draft_tokens, num_tokens - len(path) - 1)
        drafts, weights = all_drafts(draft, length, path, is_point_mass)
        rows = drafts.token_ids_BK
        counts = torch.minimum(shorten(drafts), first_stop(rows, stop_ids_1S))
        drafts = Draft(rows, counts, drafts.probs_BKV)
        tokens_NL = torch.cat([torch.tensor(PROMPT + path).expand(len(rows), -1), rows], dim=1)
        accept_NK, recover_NJV = rule(target.probs(tokens_NL, length + 1), drafts)
        reached: Counter[tuple[int, ...]] = Counter()
        for row, (accept_K, recover_JV) in enumerate(zip(accept_NK.tolist(), recover_NJV.tolist(), strict=True)):
            reached_weight = weight * weights[row]
            drafted = tuple(rows[row].tolist())
            for stop in range(length + 1):
                accept = accept_K[stop] if stop < length else 0.0
                for token, probability in enumerate(recover_JV[stop]):
                    token_weight = reached_weight * (1 - accept) * probability
                    if token_weight > 0:
                        reached[(*path, *_cut(target, (*drafted[:stop], token)))] += token_weight
                reached_weight *= accept
        stack += reached.items()
    return found


def _cut(target: Language, tokens: tuple[int, ...]) -> tuple[int, ...]:
    for index, token in enumerate(tokens):
        if token in target.params.stop_token_ids:
            return tokens[: index + 1]
    return tokens


def difference(first: Distribution, second: Distribution) -> float:
    """Return the largest difference of any sequence's probability."""
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())


def total_variation(first: Distribution, second: Distribution) -> float:
    """Return half the sum of all differences: the largest by which the probability of any set of sequences differs."""
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys()) / 2


def is_plausible(found: Counter[tuple[int, ...]], distribution: Distribution) -> bool:
    """Make the one check that right code must pass and every planted bug must fail (chi-square)."""
    if any(distribution.get(key, 0.0) == 0.0 for key in found):
        return False
    ranked = sorted(distribution, key=lambda key: -distribution[key])
    expected = found.total() * np.array([distribution[key] for key in ranked])
    num_frequent = int((expected >= 8).sum())
    # The rare ones have a bin together; if even that is rare, they are counted with the last of the frequent ones.
    bins = range(num_frequent + int(expected[num_frequent:].sum() >= 8))
    expected_N, observed_N = (np.add.reduceat(n, bins) for n in (expected, np.array([found[key] for key in ranked])))
    if len(bins) == 1:
        return True
    return bool(stats.chisquare(observed_N, expected_N * (found.total() / expected_N.sum())).pvalue > FALSE_ALARM)
