"""From logits to the distribution that is sampled: one function for target and drafter, for every row and position.

A distribution is carried as *scores*: log-probabilities up to a constant, -inf where a token cannot be drawn. The
drafter and the target call the same `process_logits`, so the q that was sampled is the q that is verified.
Results equal transformers' logits processors where one exists (tests/decoding/test_sampling.py).

Shapes: B sequences, J positions, V vocabulary, L tokens so far, S stop ids, E biased ids.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from decoding.sampling_params import SamplingParams

_NEVER = float("-inf")


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of B sequences as tensors. A field that no row uses is None and costs nothing."""

    temperature_B: torch.Tensor  # 1 where greedy: greedy is the case of no noise, not of a small temperature
    noise_scale_B: torch.Tensor  # 0 where greedy, else 1
    keys_B: torch.Tensor  # noise keys, int64
    top_k_B: torch.Tensor | None
    top_p_B: torch.Tensor | None
    min_p_B: torch.Tensor | None
    penalties_3B: torch.Tensor | None  # repetition, presence, frequency
    bias_BE: tuple[torch.Tensor, torch.Tensor] | None  # token ids, values; padded with value 0
    stop_ids_BS: torch.Tensor  # ids that end a row's text, padded with -1
    truncates: bool  # whether any row cuts by top-k, top-p or min-p
    samples: bool  # whether any row has noise
    min_length_B: torch.Tensor | None  # total length (prompt and output) before a stop id may be drawn

    @classmethod
    def build(
        cls,
        params: Seq[SamplingParams],
        keys: Seq[int],
        stop_ids: Seq[frozenset[int]],
        prompt_lengths: Seq[int],
        device: torch.device,
    ) -> "SamplingBatch":
        """The batch of these rows, in this order, on `device`."""

        def column(values: list[float], neutral: float) -> torch.Tensor | None:
            if all(value == neutral for value in values):
                return None
            return torch.tensor(values, device=device)

        # Who is sure to pick the best token is greedy, and no cut can reach that token.
        is_greedy = [p.temperature == 0 or p.top_k == 1 for p in params]
        top_k = column([0 if greedy else p.top_k for p, greedy in zip(params, is_greedy, strict=True)], 0)
        top_p = column([1.0 if greedy else float(p.top_p) for p, greedy in zip(params, is_greedy, strict=True)], 1.0)
        min_p = column([0.0 if greedy else float(p.min_p) for p, greedy in zip(params, is_greedy, strict=True)], 0.0)
        penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
        return cls(
            temperature_B=torch.tensor([p.temperature or 1.0 for p in params], device=device),
            noise_scale_B=torch.tensor([float(not greedy) for greedy in is_greedy], device=device),
            keys_B=torch.tensor(list(keys), dtype=torch.int64, device=device),
            top_k_B=top_k,
            top_p_B=top_p,
            min_p_B=min_p,
            truncates=any(cut is not None for cut in (top_k, top_p, min_p)),
            samples=not all(is_greedy),
            penalties_3B=torch.tensor(penalties, dtype=torch.float32, device=device).T
            if any(p.uses_token_counts for p in params)
            else None,
            bias_BE=_pad_bias([p.logit_bias for p in params], device),
            stop_ids_BS=_pad_ids([sorted(ids) for ids in stop_ids], -1, device),
            min_length_B=column(
                [
                    length + p.min_tokens if p.min_tokens else 0
                    for p, length in zip(params, prompt_lengths, strict=True)
                ],
                0,
            ),
        )

    def take(self, rows: torch.Tensor) -> "SamplingBatch":
        """Only these rows, in this order."""

        def of(column: torch.Tensor | None) -> torch.Tensor | None:
            return None if column is None else column[rows]

        return replace(
            self,
            temperature_B=self.temperature_B[rows],
            noise_scale_B=self.noise_scale_B[rows],
            keys_B=self.keys_B[rows],
            top_k_B=of(self.top_k_B),
            top_p_B=of(self.top_p_B),
            min_p_B=of(self.min_p_B),
            penalties_3B=None if self.penalties_3B is None else self.penalties_3B[:, rows],
            bias_BE=None if self.bias_BE is None else (self.bias_BE[0][rows], self.bias_BE[1][rows]),
            stop_ids_BS=self.stop_ids_BS[rows],
            min_length_B=of(self.min_length_B),
        )


@dataclass(frozen=True)
class TokenHistory:
    """Which tokens stand before each of J positions: what penalties and min_tokens look at."""

    token_ids_BL: torch.Tensor  # prompt, output and draft, padded on the right with anything
    prompt_lengths_B: torch.Tensor
    lengths_BJ: torch.Tensor  # tokens that stand before position j; the position's own token is the next one


def process_logits(logits_BJV: torch.Tensor, sampling: SamplingBatch, history: TokenHistory) -> torch.Tensor:
    """Scores of the distribution that is sampled, float32 [B, J, V]; the argument is left as it was.

    A greedy row gets its penalized logits, whose argmax is its token.
    """
    return truncate(shape_logits(logits_BJV, sampling, history), sampling)


def shape_logits(logits_BJV: torch.Tensor, sampling: SamplingBatch, history: TokenHistory) -> torch.Tensor:
    """The scores before anything is cut: bias, penalties, min_tokens and temperature applied, float32 [B, J, V]."""
    scores_BJV = logits_BJV.float()
    if sampling.bias_BE is not None:
        ids_BE, values_BE = sampling.bias_BE
        shape = (-1, scores_BJV.shape[1], -1)
        scores_BJV = scores_BJV.scatter_add(-1, ids_BE[:, None].expand(shape), values_BE[:, None].expand(shape))
    if sampling.penalties_3B is not None:
        scores_BJV = _penalize(scores_BJV, sampling.penalties_3B, history)
    if sampling.min_length_B is not None:
        scores_BJV = _forbid_early_stop(scores_BJV, sampling.stop_ids_BS, sampling.min_length_B, history.lengths_BJ)
    return scores_BJV / sampling.temperature_B[:, None, None]


def truncate(scores_BJV: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """The scores with what top-k, top-p and min-p drop at -inf."""
    return _cut(scores_BJV, sampling, [0.0])[0]


def truncate_with_borders(
    scores_BJV: torch.Tensor, sampling: SamplingBatch, slack: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The cut scores, then with all that rounding could let in, then without all that rounding could drop.

    The slack is in scores (logits over temperature), and as much in the probability mass of top-p. Near-equal scores
    can also change places: of several tokens that stand where the cut is, each could be the one that goes.
    """
    cut_BJV, looser_BJV, tighter_BJV = _cut(scores_BJV, sampling, [0.0, slack, -slack])
    looser_BJV = scores_BJV.masked_fill(scores_BJV < _lowest(looser_BJV) - slack, _NEVER)
    is_border_BJV = (scores_BJV - _lowest(cut_BJV)).abs() <= slack
    is_border_BJV &= is_border_BJV.sum(-1, keepdim=True) > 1
    return cut_BJV, looser_BJV, tighter_BJV.masked_fill(is_border_BJV, _NEVER)


def probabilities(scores_BJV: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """The distribution itself, float32 [B, J, V]: a point mass on the best token where a row is greedy."""
    best_BJV = torch.zeros_like(scores_BJV).scatter_(-1, scores_BJV.argmax(-1, keepdim=True), 1.0)
    is_greedy_B11 = (sampling.noise_scale_B == 0)[:, None, None]
    return torch.where(is_greedy_B11, best_BJV, scores_BJV.softmax(-1))


def first_stop(token_ids_BK: torch.Tensor, stop_ids_BS: torch.Tensor) -> torch.Tensor:
    """How many tokens stand up to and including the first stop id of each row, [B]; K where there is none."""
    is_stop_BK = (token_ids_BK[:, :, None] == stop_ids_BS[:, None, :]).any(-1)
    num_before_B = (is_stop_BK.cumsum(-1) == 0).sum(-1)
    return (num_before_B + 1).clamp(max=token_ids_BK.shape[1])


def _penalize(scores_BJV: torch.Tensor, penalties_3B: torch.Tensor, history: TokenHistory) -> torch.Tensor:
    repetition_B11, presence_B11, frequency_B11 = penalties_3B[:, :, None, None]
    scores_BJV = scores_BJV.clone()
    num_positions, num_tokens = scores_BJV.shape[1], history.token_ids_BL.shape[1]
    index_L = torch.arange(num_tokens, device=scores_BJV.device)
    stands_BJL = index_L < history.lengths_BJ[:, :, None]
    # Ids that do not stand yet are replaced by the row's first token, which does: writing it again is harmless.
    ids_BJL = torch.where(stands_BJL, history.token_ids_BL[:, None, :], history.token_ids_BL[:, None, :1])
    seen_BJL = scores_BJV.gather(-1, ids_BJL)
    scores_BJV.scatter_(-1, ids_BJL, torch.where(seen_BJL < 0, seen_BJL * repetition_B11, seen_BJL / repetition_B11))

    is_output_BJL = stands_BJL & (index_L >= history.prompt_lengths_B[:, None, None])
    all_ids_BJL = history.token_ids_BL[:, None, :].expand(-1, num_positions, -1)
    all_ids_BJL = torch.where(is_output_BJL, all_ids_BJL, 0)
    counts_BJV = torch.zeros_like(scores_BJV).scatter_add_(-1, all_ids_BJL, is_output_BJL.float())
    penalized_BJV: torch.Tensor = scores_BJV - frequency_B11 * counts_BJV - presence_B11 * (counts_BJV > 0)
    return penalized_BJV


def _forbid_early_stop(
    scores_BJV: torch.Tensor, stop_ids_BS: torch.Tensor, min_length_B: torch.Tensor, lengths_BJ: torch.Tensor
) -> torch.Tensor:
    num_positions, vocab_size = scores_BJV.shape[1:]
    # One spare column takes the padding (-1) and ids outside the vocabulary.
    spare = vocab_size
    ids_BS = torch.where((stop_ids_BS >= 0) & (stop_ids_BS < vocab_size), stop_ids_BS, spare)
    is_stop_BV = torch.zeros(len(ids_BS), vocab_size + 1, dtype=torch.bool, device=scores_BJV.device)
    is_stop_BV = is_stop_BV.scatter_(-1, ids_BS, True)[:, :vocab_size]
    is_early_BJ = lengths_BJ < min_length_B[:, None]
    return scores_BJV.masked_fill(
        is_early_BJ[:, :, None] & is_stop_BV[:, None, :].expand(-1, num_positions, -1), _NEVER
    )


def _cut(scores_BJV: torch.Tensor, sampling: SamplingBatch, slacks: list[float]) -> list[torch.Tensor]:
    """The cut scores, once for each slack in the mass of top-p and in the floor of min-p; the best token stays."""
    cut_BJV = scores_BJV
    if sampling.top_k_B is not None:
        cut_BJV = _keep_top_k(cut_BJV, sampling.top_k_B)
    cuts = [cut_BJV for _ in slacks]
    if sampling.top_p_B is not None:
        cuts = _keep_top_p(cut_BJV, sampling.top_p_B, slacks)
    if sampling.min_p_B is not None:
        best_BJ1 = scores_BJV.amax(-1, keepdim=True)
        floor_BJ1 = best_BJ1 + sampling.min_p_B.log()[:, None, None]
        floors = [torch.minimum(floor_BJ1 - slack, best_BJ1) for slack in slacks]
        cuts = [cut.masked_fill(cut < floor, _NEVER) for cut, floor in zip(cuts, floors, strict=True)]
    return cuts


def _lowest(cut_BJV: torch.Tensor) -> torch.Tensor:
    return cut_BJV.masked_fill(cut_BJV == _NEVER, float("inf")).amin(-1, keepdim=True)


def _keep_top_k(scores_BJV: torch.Tensor, top_k_B: torch.Tensor) -> torch.Tensor:
    vocab_size = scores_BJV.shape[-1]
    k_B = torch.where(top_k_B == 0, vocab_size, top_k_B.clamp(max=vocab_size)).long()
    largest = max(min(int(top_k_B.max()), vocab_size), 1)  # no row cuts where rows were taken out of a batch
    best_BJK = scores_BJV.topk(largest, dim=-1).values
    index_BJ1 = (k_B.clamp(max=largest) - 1)[:, None, None].expand(-1, scores_BJV.shape[1], 1)
    threshold_BJ1 = best_BJK.gather(-1, index_BJ1).masked_fill((top_k_B == 0)[:, None, None], _NEVER)
    return scores_BJV.masked_fill(scores_BJV < threshold_BJ1, _NEVER)


def _keep_top_p(cut_BJV: torch.Tensor, top_p_B: torch.Tensor, slacks: list[float]) -> list[torch.Tensor]:
    ascending_BJV, order_BJV = cut_BJV.sort(dim=-1, stable=True)
    mass_BJV = ascending_BJV.softmax(-1).cumsum(-1)
    kept = []
    for slack in slacks:
        drop_BJV = (mass_BJV <= 1 - top_p_B[:, None, None] - slack) & (top_p_B < 1)[:, None, None]
        drop_BJV[..., -1] = False  # the most likely token always stays
        kept.append(cut_BJV.masked_fill(torch.zeros_like(drop_BJV).scatter_(-1, order_BJV, drop_BJV), _NEVER))
    return kept


def _pad_ids(rows: list[list[int]], filler: int, device: torch.device) -> torch.Tensor:
    width = max((len(row) for row in rows), default=0) or 1
    padded = [row + [filler] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64, device=device)


def _pad_bias(biases: Seq[object], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    if not any(biases):
        return None
    rows = [dict(bias) for bias in biases]  # type: ignore[call-overload]
    ids_BE = _pad_ids([list(row) for row in rows], 0, device)
    values_BE = torch.zeros(ids_BE.shape, device=device)
    for values_E, row in zip(values_BE, rows, strict=True):
        values_E[: len(row)] = torch.tensor(list(row.values()))
    return ids_BE, values_BE
