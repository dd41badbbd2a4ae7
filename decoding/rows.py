"""Rows: the running sequences of one round, as the engine hands them to drafter and sampler.

Row b stands in slot b of every cache. Shapes: B rows, K drafted tokens, J positions, L tokens so far.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from decoding.noise import GumbelNoise, Stream
from decoding.picks import Picks, pick_tokens
from decoding.sampling import SamplingBatch, TokenHistory, shape_logits
from decoding.sequence import Sequence
from decoding.verify import Verification


@dataclass(frozen=True)
class Rows:
    """What one round works on. It lives as long as the round: nothing is committed to its sequences meanwhile."""

    sequences: tuple[Sequence, ...]
    sampling: SamplingBatch
    num_draft_tokens: tuple[int, ...]  # how many tokens each row may draft this round
    verification: Verification

    def positions(self, first: int, num_positions: int) -> torch.Tensor:
        """Positions [B, J] of tokens to come: those from `len(sequence) + first` on."""
        return self._lengths_B[:, None] + torch.arange(first, first + num_positions, device=self._lengths_B.device)

    def history(self, drafted_BK: torch.Tensor, first: int, num_positions: int) -> TokenHistory:
        """What stands before each of those positions, the drafted tokens included."""
        positions_BJ = self.positions(first, num_positions)
        if self.sampling.penalties_3B is None:
            return TokenHistory(drafted_BK[:, :0], self._prompt_lengths_B, positions_BJ)
        num_drafted = drafted_BK.shape[1]
        token_ids_BL = torch.nn.functional.pad(self._token_ids_BL, (0, num_drafted))
        index_BK = self._lengths_B[:, None] + torch.arange(num_drafted, device=drafted_BK.device)
        return TokenHistory(token_ids_BL.scatter_(1, index_BK, drafted_BK), self._prompt_lengths_B, positions_BJ)

    def pick(self, logits_BJV: torch.Tensor, drafted_BK: torch.Tensor, first: int, margin: float = 0.0) -> Picks:
        """The picks under the shared noise at the J positions from `first` on; `drafted_BK` stands before them."""
        num_positions, vocab_size = logits_BJV.shape[1:]
        shaped_BJV = shape_logits(logits_BJV, self.sampling, self.history(drafted_BK, first, num_positions))
        return pick_tokens(shaped_BJV, self.sampling, self._noise(vocab_size, first, num_positions), margin)

    def _noise(self, vocab_size: int, first: int, num_positions: int) -> GumbelNoise | None:
        """The noise of those positions: the drafter and the verifier read the same numbers, drawn once a round."""
        if not self.sampling.samples:
            return None
        width = max(self.num_draft_tokens, default=0) + 1
        if first + num_positions > width:
            return GumbelNoise.draw(
                self.sampling.keys_B, self.positions(first, num_positions), vocab_size, Stream.SHARED
            )
        if vocab_size not in self._noises:
            positions_BJ = self.positions(0, width)
            self._noises[vocab_size] = GumbelNoise.draw(self.sampling.keys_B, positions_BJ, vocab_size, Stream.SHARED)
        return self._noises[vocab_size].of(slice(None), slice(first, first + num_positions))

    @cached_property
    def _noises(self) -> dict[int, GumbelNoise]:
        return {}

    @cached_property
    def _lengths_B(self) -> torch.Tensor:
        return torch.tensor([len(sequence) for sequence in self.sequences], device=self.sampling.keys_B.device)

    @cached_property
    def _prompt_lengths_B(self) -> torch.Tensor:
        lengths = [len(sequence.prompt_token_ids) for sequence in self.sequences]
        return torch.tensor(lengths, device=self.sampling.keys_B.device)

    @cached_property
    def _token_ids_BL(self) -> torch.Tensor:
        width = max(len(sequence) for sequence in self.sequences)
        padded = [sequence.token_ids + [0] * (width - len(sequence)) for sequence in self.sequences]
        return torch.tensor(padded, device=self.sampling.keys_B.device)


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
