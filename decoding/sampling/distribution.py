"""From logits to the distribution that is sampled: one function for target and drafter, for every row and position.

A distribution is represented by *scores*: log-probabilities up to a constant, -inf where a token cannot be drawn. The
drafter and the target both compute theirs here, so the q that was sampled is the q that is verified.
The results equal transformers' logits processors where one exists (tests/decoding/sampling/test_distribution.py).

Shapes: B sequences, J positions, V vocabulary, L tokens so far, S stop ids, E biased ids.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch

from decoding.device import to_device
from decoding.gpu.available import kernels_run_on
from decoding.gpu.pick_table import Biases, PickTable
from decoding.sampling.cuts import NEVER, Cuts, Scores, find_supports
from decoding.sampling.token_history import ForbiddenTokens, TokenHistory
from decoding.sampling_params import SamplingParams


@dataclass(frozen=True)
class RowKind:
    """Rows whose tokens are found in the same way: `open` has no cut, `nucleus` has top-p or min-p but no top-k."""

    name: Literal["greedy", "open", "top_k", "nucleus"]
    rows: tuple[int, ...]  # which rows of the batch
    rows_R: torch.Tensor | None  # None: every row of the batch
    cuts: Cuts  # one for each row

    @property
    def cuts_any(self) -> bool:
        """Whether tokens are cut."""
        return self.name in ("top_k", "nucleus")

    def take(self, rows: Seq[int], device: torch.device) -> "RowKind | None":
        """Return the rows of this kind among `rows`, numbered by their place there; None if there are none."""
        old_of = {row: old for old, row in enumerate(self.rows)}
        new = [index for index, row in enumerate(rows) if row in old_of]
        if not new:
            return None
        old_R = to_device([old_of[rows[index]] for index in new], device)
        new_R = None if len(new) == len(rows) else to_device(new, device)
        return RowKind(self.name, tuple(new), new_R, self.cuts.of(old_R))

    def places(self, num_positions: int) -> torch.Tensor | None:
        """Return the indexes of these rows' positions among all positions, flattened; None if the kind has all."""
        if self.rows_R is None:
            return None
        return (self.rows_R[:, None] * num_positions + torch.arange(num_positions, device=self.rows_R.device)).flatten()


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of B sequences as tensors. A field that no row uses is None and costs nothing."""

    temperature_B: torch.Tensor  # 1 where greedy: greedy is the case of no noise, not of a small temperature
    keys_B: torch.Tensor  # noise keys, int64
    kinds: tuple[RowKind, ...]  # every row belongs to one of them
    forbidden: ForbiddenTokens | None  # by allowed_token_ids and bad_words
    penalties_3B: torch.Tensor | None  # repetition, presence, frequency
    biases: Biases | None  # of each row
    stop_ids_BS: torch.Tensor  # ids that end a row's text, padded with -1
    min_length_B: torch.Tensor | None  # total length (prompt and output) before a stop id may be drawn
    table: PickTable | None  # the same again for the kernels that pick; None where they do not run

    @classmethod
    def build(
        cls,
        params: Seq[SamplingParams],
        keys: Seq[int],
        stop_ids: Seq[frozenset[int]],
        prompt_lengths: Seq[int],
        device: torch.device,
    ) -> "SamplingBatch":
        """Return the batch of these rows, in this order, on `device`."""
        penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
        uses_counts = any(p.uses_token_counts for p in params)
        min_lengths = [p.min_tokens and n + p.min_tokens for p, n in zip(params, prompt_lengths, strict=True)]
        return cls(
            temperature_B=to_device([1.0 if p.is_greedy else p.temperature for p in params], device, torch.float32),
            keys_B=to_device(list(keys), device, torch.int64),
            kinds=_kinds(params, device),
            forbidden=ForbiddenTokens.build(params, device),
            penalties_3B=to_device(penalties, device, torch.float32).T if uses_counts else None,
            biases=Biases.of([p.logit_bias for p in params], device) if any(p.logit_bias for p in params) else None,
            stop_ids_BS=_pad_ids([sorted(ids) for ids in stop_ids], -1, device),
            min_length_B=_column(min_lengths, 0, device),
            table=PickTable.build(params, keys, stop_ids, prompt_lengths, device) if kernels_run_on(device) else None,
        )

    @property
    def samples(self) -> bool:
        """Whether any row has noise."""
        return any(kind.name != "greedy" for kind in self.kinds)

    @cached_property
    def samples_B(self) -> torch.Tensor:
        """Which rows have noise, bool."""
        samples_B = torch.ones_like(self.keys_B, dtype=torch.bool)
        for kind in self.kinds:
            if kind.name == "greedy":
                samples_B[slice(None) if kind.rows_R is None else kind.rows_R] = False
        return samples_B

    @property
    def cuts(self) -> bool:
        """Whether any row has top-k, top-p or min-p."""
        return any(kind.cuts_any for kind in self.kinds)

    @property
    def shapes(self) -> bool:
        """Whether `shape_logits` changes any logits."""
        fields = (self.forbidden, self.biases, self.penalties_3B, self.min_length_B)
        return any(field is not None for field in fields)

    @property
    def reads_tokens(self) -> bool:
        """Whether the distribution at a position depends on which tokens are before it, beyond the model itself."""
        return self.penalties_3B is not None or (self.forbidden is not None and self.forbidden.reads_tokens)

    def of_scores(self) -> "SamplingBatch":
        """Return the batch for logits that are scores already, so that nothing is left to divide or to cut."""
        kinds = tuple(replace(k, name="greedy" if k.name == "greedy" else "open") for k in self.kinds)
        return replace(self, temperature_B=torch.ones_like(self.temperature_B), kinds=kinds, table=None)

    def take(self, rows: Seq[int]) -> "SamplingBatch":
        index_N = to_device(rows, self.keys_B.device)
        kinds = [kind.take(rows, index_N.device) for kind in self.kinds]
        return replace(
            self,
            temperature_B=self.temperature_B[index_N],
            keys_B=self.keys_B[index_N],
            kinds=tuple(kind for kind in kinds if kind is not None),
            forbidden=None if self.forbidden is None else self.forbidden.take(rows),
            penalties_3B=None if self.penalties_3B is None else self.penalties_3B[:, index_N],
            biases=None if self.biases is None else self.biases.take(index_N),
            stop_ids_BS=self.stop_ids_BS[index_N],
            min_length_B=None if self.min_length_B is None else self.min_length_B[index_N],
            table=None if self.table is None else self.table.take(rows, index_N),
        )


def process_logits(logits_BJV: torch.Tensor, sampling: SamplingBatch, history: TokenHistory) -> torch.Tensor:
    """Return the scores of the distribution that is sampled, float32 [B, J, V]; the argument is not changed.

    A greedy row gets its penalized logits, whose argmax is its token.
    """
    shaped_BJV = shape_logits(logits_BJV, sampling, history)
    return truncate(shaped_BJV.float() / sampling.temperature_B[:, None, None], sampling)


def shape_logits(logits_BJV: torch.Tensor, sampling: SamplingBatch, history: TokenHistory) -> torch.Tensor:
    """Return the logits [B, J, V] without forbidden tokens, and after bias, penalties and min_tokens.

    This is the argument itself if no row has any of these.
    """
    shaped_BJV = logits_BJV if sampling.forbidden is None else sampling.forbidden.apply(logits_BJV, history)
    if sampling.biases is not None:
        ids_BE, values_BE = sampling.biases.ids_RE, sampling.biases.values_RE
        shape = (-1, logits_BJV.shape[1], -1)
        shaped_BJV = shaped_BJV.float().scatter_add(-1, ids_BE[:, None].expand(shape), values_BE[:, None].expand(shape))
    if sampling.penalties_3B is not None:
        shaped_BJV = _penalize(shaped_BJV.float(), sampling.penalties_3B, history)
    if sampling.min_length_B is not None:
        shaped_BJV = _forbid_early_stop(shaped_BJV, sampling.stop_ids_BS, sampling.min_length_B, history.lengths_BJ)
    return shaped_BJV


def truncate(scores_BJV: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """Set what top-k, top-p and min-p drop to -inf; return the argument itself if nothing can be dropped."""
    num_positions = scores_BJV.shape[1]
    cutting = [kind for kind in sampling.kinds if kind.cuts_any]
    if not cutting:
        return scores_BJV
    scores = Scores.over(scores_BJV, torch.ones_like(sampling.temperature_B))
    cut_PV = scores_BJV.flatten(0, 1).clone()
    for kind in cutting:
        places_P = kind.places(num_positions)
        own = scores if places_P is None else scores.of(places_P)
        for support in find_supports(own, kind.cuts.repeated(num_positions)):
            kept_PM = support.scores_PM.masked_fill(~support.is_kept_PM, NEVER)
            nothing_PV = kept_PM.new_full((len(kept_PM), scores.vocab_size), NEVER)
            cut_PV[own.places_P[support.index_P]] = nothing_PV.scatter_(-1, support.token_ids_PM, kept_PM)
    return cut_PV.view(scores_BJV.shape)


def keep_best(scores_BJV: torch.Tensor, num_kept: int) -> torch.Tensor:
    """Set all but each position's `num_kept` best scores to -inf; return the argument itself if `num_kept` is 0.

    A drafter that draws from these tokens, and states their distribution, is as lossless as one that draws from all.
    """
    if not 0 < num_kept < scores_BJV.shape[-1]:
        return scores_BJV
    best_BJM, ids_BJM = scores_BJV.topk(num_kept, dim=-1)
    return torch.full_like(scores_BJV, NEVER).scatter_(-1, ids_BJM, best_BJM)


def probabilities(scores_BJV: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """Return the distribution itself, float32 [B, J, V]: a point mass on the best token for a greedy row."""
    probs_BJV = scores_BJV.softmax(-1)
    for kind in sampling.kinds:
        if kind.name == "greedy":
            rows_R = torch.arange(len(probs_BJV), device=probs_BJV.device) if kind.rows_R is None else kind.rows_R
            best_RJ1 = scores_BJV[rows_R].max(-1, keepdim=True).indices
            probs_BJV[rows_R] = torch.zeros_like(scores_BJV[rows_R]).scatter_(-1, best_RJ1, 1.0)
    return probs_BJV


def first_stop(token_ids_BK: torch.Tensor, stop_ids_BS: torch.Tensor) -> torch.Tensor:
    """Count each row's tokens up to and including its first stop id, [B]; K for a row without one."""
    is_stop_BK = (token_ids_BK[:, :, None] == stop_ids_BS[:, None, :]).any(-1)
    num_before_B = (is_stop_BK.cumsum(-1) == 0).sum(-1)
    return (num_before_B + 1).clamp(max=token_ids_BK.shape[1])


def _penalize(logits_BJV: torch.Tensor, penalties_3B: torch.Tensor, history: TokenHistory) -> torch.Tensor:
    repetition_B11, presence_B11, frequency_B11 = penalties_3B[:, :, None, None]
    index_L = torch.arange(history.token_ids_BL.shape[1], device=logits_BJV.device)
    is_before_BJL = index_L < history.lengths_BJ[:, :, None]
    # Ids at or behind the position are replaced by the row's first token: writing that one again is harmless.
    ids_BJL = torch.where(is_before_BJL, history.token_ids_BL[:, None, :], history.token_ids_BL[:, None, :1])
    is_output_BJL = is_before_BJL & (index_L >= history.prompt_lengths_B[:, None, None])
    counts_BJV = torch.zeros_like(logits_BJV).scatter_add_(-1, ids_BJL, is_output_BJL.float())
    counts_BJL = counts_BJV.gather(-1, ids_BJL)
    seen_BJL = logits_BJV.gather(-1, ids_BJL)
    seen_BJL = torch.where(seen_BJL < 0, seen_BJL * repetition_B11, seen_BJL / repetition_B11)
    seen_BJL = seen_BJL - frequency_B11 * counts_BJL - presence_B11 * (counts_BJL > 0)
    return logits_BJV.scatter(-1, ids_BJL, seen_BJL)


def _forbid_early_stop(
    scores_BJV: torch.Tensor, stop_ids_BS: torch.Tensor, min_length_B: torch.Tensor, lengths_BJ: torch.Tensor
) -> torch.Tensor:
    num_positions, vocab_size = scores_BJV.shape[1:]
    # One spare column takes the padding (-1) and ids outside the vocabulary.
    ids_BS = torch.where((stop_ids_BS >= 0) & (stop_ids_BS < vocab_size), stop_ids_BS, vocab_size)
    is_stop_BV = torch.zeros(len(ids_BS), vocab_size + 1, dtype=torch.bool, device=scores_BJV.device)
    is_stop_BV = is_stop_BV.scatter_(-1, ids_BS, True)[:, :vocab_size]
    is_early_BJ = lengths_BJ < min_length_B[:, None]
    return scores_BJV.masked_fill(is_early_BJ[:, :, None] & is_stop_BV[:, None, :].expand(-1, num_positions, -1), NEVER)


def _kinds(params: Seq[SamplingParams], device: torch.device) -> tuple[RowKind, ...]:
    rows: dict[Literal["greedy", "open", "top_k", "nucleus"], list[int]] = {}
    for row, p in enumerate(params):
        if p.is_greedy:
            rows.setdefault("greedy", []).append(row)
        elif p.top_k:
            rows.setdefault("top_k", []).append(row)
        else:
            rows.setdefault("nucleus" if p.top_p < 1 or p.min_p > 0 else "open", []).append(row)
    return tuple(
        RowKind(
            name=name,
            rows=tuple(own),
            rows_R=None if len(own) == len(params) else to_device(own, device),
            cuts=Cuts(
                _column([params[row].top_k for row in own], 0, device) if name == "top_k" else None,
                None if name == "greedy" else _column([float(params[row].top_p) for row in own], 1.0, device),
                None if name == "greedy" else _column([float(params[row].min_p) for row in own], 0.0, device),
                max(params[row].top_k for row in own) if name == "top_k" else 0,
            ),
        )
        for name, own in rows.items()
    )


def _column(values: Seq[float], neutral: float, device: torch.device) -> torch.Tensor | None:
    if all(value == neutral for value in values):
        return None
    return to_device(values, device, torch.float64 if isinstance(neutral, float) else torch.int64)


def _pad_ids(rows: list[list[int]], filler: int, device: torch.device) -> torch.Tensor:
    width = max((len(row) for row in rows), default=0) or 1
    return to_device([row + [filler] * (width - len(row)) for row in rows], device, torch.int64)
