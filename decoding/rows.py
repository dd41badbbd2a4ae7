"""Rows: the running sequences of one round, as the engine hands them to drafter and sampler.

Row b stands in slot b of every cache. Shapes: B rows, K drafted tokens, J positions, L tokens so far.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import torch

from decoding.sampling import SamplingBatch, TokenHistory
from decoding.sequence import Sequence
from decoding.verify import Verification


class Tail(NamedTuple):
    """What a lookup may add behind the tokens that a draft model drafted."""

    most: int  # tokens
    least: float  # chance of the last one to stand if the model's tokens do; what is less likely does not pay


@dataclass(frozen=True)
class Rows:
    """What one round works on."""

    sequences: tuple[Sequence, ...]
    sampling: SamplingBatch
    num_draft_tokens: tuple[int, ...]  # how many tokens each row may draft this round
    verification: Verification
    # Where the drafter has a draft model and looks up, too:
    looks_up: tuple[bool, ...] = ()  # rows that take what was looked up
    tails: tuple[Tail, ...] = ()  # what may be looked up behind the model's tokens

    def take(self, rows: Seq[int]) -> "Rows":
        """Only these rows, in this order."""
        if list(rows) == list(range(len(self.sequences))):
            return self
        index = torch.tensor(rows, device=self.sampling.keys_B.device)
        return Rows(
            tuple(self.sequences[row] for row in rows),
            self.sampling.take(index),
            tuple(self.num_draft_tokens[row] for row in rows),
            self.verification,
            tuple(self.looks_up[row] for row in rows if self.looks_up),
            tuple(self.tails[row] for row in rows if self.tails),
        )

    def positions(self, first: int, num_positions: int) -> torch.Tensor:
        """Positions [B, J] of tokens to come: those from `len(sequence) + first` on."""
        lengths = [len(sequence) + first for sequence in self.sequences]
        device = self.sampling.keys_B.device
        return torch.tensor(lengths, device=device)[:, None] + torch.arange(num_positions, device=device)

    def history(self, drafted_BK: torch.Tensor, first: int, num_positions: int) -> TokenHistory:
        """What stands before each of those positions, the drafted tokens included."""
        positions_BJ = self.positions(first, num_positions)
        device = positions_BJ.device
        prompt_lengths = [len(sequence.prompt_token_ids) for sequence in self.sequences]
        if self.sampling.penalties_3B is None:
            token_ids_BL = drafted_BK[:, :0]
        else:
            lengths = [len(sequence) for sequence in self.sequences]
            width = max(lengths) + drafted_BK.shape[1]
            padded = [s.token_ids + [0] * (width - len(s)) for s in self.sequences]
            index_BK = torch.tensor(lengths, device=device)[:, None] + torch.arange(drafted_BK.shape[1], device=device)
            token_ids_BL = torch.tensor(padded, device=device).scatter_(1, index_BK, drafted_BK)
        return TokenHistory(token_ids_BL, torch.tensor(prompt_lengths, device=device), positions_BJ)


def sampling_batch(
    sequences: tuple[Sequence, ...], eos_token_ids: frozenset[int], device: torch.device
) -> SamplingBatch:
    """The sampling parameters of these sequences as tensors."""
    return SamplingBatch.build(
        params=[s.params for s in sequences],
        keys=[s.noise_key for s in sequences],
        stop_ids=[s.stop_ids(eos_token_ids) for s in sequences],
        prompt_lengths=[len(s.prompt_token_ids) for s in sequences],
        device=device,
    )
