"""The noise under which a text was picked, and what a draft picks under it.

A row of a run says its noise by its key. Of other texts only the tokens are known; given these, the noise has a law of
its own, from which it is drawn here: the target's noised scores have their largest value at the token of the text, that
value is a Gumbel number, and the others are Gumbel numbers below it (Maddison, Tarlow, Minka, arXiv 1411.0030). A draft
accepts under that noise as often, in the mean, as in a run that writes such texts.

Shapes: N output tokens, J of them, V vocabulary.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import torch

from decoding.noise import GumbelNoise, Stream, uniform
from decoding.sampling.distribution import process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.rules import close_calls
from training.corpus.example import Example
from training.corpus.on_policy import rows_of

_SCORES_AT_ONCE = 1 << 24


class NoiseOfText:
    """The noise at each output token of an example."""

    def __init__(self, example: Example, target_logits_1NV: torch.Tensor, eos_token_ids: frozenset[int]) -> None:
        """Take the target's logits at these tokens, which matter where the noise is not known."""
        self.rows: Rows = rows_of(example, eos_token_ids, target_logits_1NV.device)
        self.is_known = example.noise_key is not None or example.params.is_greedy
        self.tokens_1N = torch.tensor([example.output_token_ids], device=target_logits_1NV.device)
        self._target_logits_1NV = target_logits_1NV
        if not self.is_known:
            content = struct.pack(f"<{self.tokens_1N.numel()}i", *example.output_token_ids)
            key = int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True)
            self._keys_1 = torch.tensor([key], device=target_logits_1NV.device)

    def picks(self, logits_1JV: torch.Tensor, first: int) -> torch.Tensor:
        """Return what a model with these logits picks [J] at the output tokens from `first` on."""
        if self.is_known:
            return self.rows.pick(logits_1JV, self.tokens_1N[:, :-1], first).token_ids_BJ[0]
        found = [torch.empty(0, dtype=torch.int64, device=logits_1JV.device)]
        for start, end in spans(logits_1JV):
            scores_JV = self.scores(logits_1JV[:, start:end], first + start)
            found.append((scores_JV + self._drawn(first + start, end - start)).argmax(-1))
        return torch.cat(found)

    def targets_own(self, close_call: float) -> tuple[list[int], frozenset[int]]:
        """Return the places in the output where the target picks another token, and those of close calls.

        A close call is a pick that rounding could have decided, with this margin, as the engine sees it. Both are empty
        where the noise is not known.
        """
        if not self.is_known:
            return [], frozenset()
        picks = self.rows.pick(self._target_logits_1NV, self.tokens_1N[:, :-1], 0, close_call)
        others = (picks.token_ids_BJ != self.tokens_1N)[0].nonzero()[:, 0].tolist()
        if not close_call:
            return others, frozenset()
        return others, frozenset(close_calls(picks, self.rows.sampling, close_call)[0].nonzero()[:, 0].tolist())

    def scores(self, logits_1JV: torch.Tensor, first: int) -> torch.Tensor:
        """Return the scores [J, V] of the law that is sampled at the output tokens from `first` on."""
        history = self.rows.history(self.tokens_1N[:, :-1], first, logits_1JV.shape[1])
        return process_logits(logits_1JV, self.rows.sampling, history)[0]

    def _drawn(self, first: int, num_positions: int) -> torch.Tensor:
        """Draw the noise [J, V] of these positions, given that the target picked their tokens."""
        logits_1JV = self._target_logits_1NV[:, first : first + num_positions]
        logp_JV = self.scores(logits_1JV, first).log_softmax(-1)
        positions_1J = self.rows.positions(first, num_positions)
        free_JV = GumbelNoise.draw(self._keys_1, positions_1J, logp_JV.shape[-1], Stream.DRAFT).dense(
            logp_JV.shape[-1]
        )[0]
        largest_J1 = -(-uniform(self._keys_1, positions_1J, Stream.RECOVER)[0].log()).log().float()[:, None]
        below_JV = -torch.logaddexp(-largest_J1, -(logp_JV + free_JV))
        noise_JV = torch.where(logp_JV.isinf(), free_JV, below_JV - logp_JV)
        ids_J1 = self.tokens_1N[0, first : first + num_positions, None]
        own_J1 = logp_JV.gather(-1, ids_J1)
        # A token that the target cannot draw says nothing of the noise: it was not picked there.
        own_J1 = torch.where(own_J1.isinf(), free_JV.gather(-1, ids_J1), largest_J1 - own_J1)
        return noise_JV.scatter(-1, ids_J1, own_J1)


def spans(logits_1JV: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield the ranges of positions that are turned into laws at once, which bounds their memory."""
    num_positions, vocab_size = logits_1JV.shape[1:]
    size = max(1, _SCORES_AT_ONCE // vocab_size)
    for start in range(0, num_positions, size):
        yield start, min(start + size, num_positions)
