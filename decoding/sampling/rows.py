"""Rows: the running sequences of one round, as the engine hands them to drafter and sampler.

Row b stands in slot b of every cache. Shapes: B rows, K drafted tokens, J positions, L tokens so far.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch

from decoding.device import to_device
from decoding.noise import GumbelNoise, Stream
from decoding.sampling.batch import SamplingBatch, TokenHistory, shape_logits
from decoding.sampling.picks import Picks, pick_tokens
from decoding.sampling.verify import Verification
from decoding.sequence import Sequence


class ExtensionLimit(NamedTuple):
    """How far a lookup may extend what a draft model drafted."""

    max_tokens: int
    min_survival: float  # least chance that the last token is accepted if the model's are; below it nothing pays


@dataclass(frozen=True)
class Rows:
    """What one round works on. It lives as long as the round: nothing is committed to its sequences meanwhile."""

    sequences: tuple[Sequence, ...]
    sampling: SamplingBatch
    num_draft_tokens: tuple[int, ...]  # how many tokens each row may draft this round
    verification: Verification
    # Where the drafter has a draft model and looks up, too:
    uses_lookup: tuple[bool, ...] = ()  # rows that take what was looked up
    extension_limits: tuple[ExtensionLimit, ...] = ()  # what may be looked up behind the model's tokens
    # What the round's rows and parts of them share, so that the drafter and the verifier draw their noise once.
    noises: "Noises | None" = field(default=None, compare=False)

    def take(self, rows: Seq[int]) -> "Rows":
        """Only these rows, in this order."""
        if list(rows) == list(range(len(self.sequences))):
            return self
        return Rows(
            tuple(self.sequences[row] for row in rows),
            self.sampling.take(rows),
            tuple(self.num_draft_tokens[row] for row in rows),
            self.verification,
            tuple(self.uses_lookup[row] for row in rows if self.uses_lookup),
            tuple(self.extension_limits[row] for row in rows if self.extension_limits),
            self._shared_noises.take(rows),
        )

    def limited(self, may_draft: Seq[bool]) -> "Rows":
        """The same rows, of which only some may draft."""
        limits = tuple(limit if may else 0 for limit, may in zip(self.num_draft_tokens, may_draft, strict=True))
        return replace(self, num_draft_tokens=limits, noises=self._shared_noises)

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
        return self._shared_noises.of(vocab_size, first, num_positions)

    @cached_property
    def _shared_noises(self) -> "Noises":
        if self.noises is not None:
            return self.noises
        width = max(self.num_draft_tokens, default=0) + 1
        return Noises(self.sampling.keys_B, self.positions(0, width))

    @cached_property
    def _lengths_B(self) -> torch.Tensor:
        return to_device([len(sequence) for sequence in self.sequences], self.sampling.keys_B.device)

    @cached_property
    def _prompt_lengths_B(self) -> torch.Tensor:
        lengths = [len(sequence.prompt_token_ids) for sequence in self.sequences]
        return to_device(lengths, self.sampling.keys_B.device)

    @cached_property
    def _token_ids_BL(self) -> torch.Tensor:
        width = max(len(sequence) for sequence in self.sequences)
        padded = [sequence.token_ids + [0] * (width - len(sequence)) for sequence in self.sequences]
        return to_device(padded, self.sampling.keys_B.device)


class Noises:
    """The shared noise of a round's rows at the positions that it may score, drawn when first asked for."""

    def __init__(self, keys_B: torch.Tensor, positions_BJ: torch.Tensor) -> None:
        """Noise under these keys at these positions."""
        self._keys_B, self._positions_BJ = keys_B, positions_BJ
        self._drawn: dict[int, GumbelNoise] = {}  # by the size of the vocabulary

    def of(self, vocab_size: int, first: int, num_positions: int) -> GumbelNoise:
        """The noise of `num_positions` positions from `first` on."""
        missing = first + num_positions - self._positions_BJ.shape[1]
        if missing > 0:  # a lookup went on behind what was planned
            more = torch.arange(1, missing + 1, device=self._keys_B.device)
            positions_BJ = torch.cat((self._positions_BJ, self._positions_BJ[:, -1:] + more), dim=1)[:, first:]
            return GumbelNoise.draw(self._keys_B, positions_BJ, vocab_size, Stream.SHARED)
        return self._upto(vocab_size, first + num_positions).of(slice(None), slice(first, first + num_positions))

    def take(self, rows: Seq[int]) -> "Noises":
        """The same numbers for some of the rows."""
        index_N = to_device(rows, self._keys_B.device)
        return _PartOfNoises(self, index_N)

    def _upto(self, vocab_size: int, num_positions: int) -> GumbelNoise:
        """At least so many positions: at first no more (plain decoding needs one), then all that were planned."""
        drawn = self._drawn.get(vocab_size)
        if drawn is None:
            positions_BJ = self._positions_BJ[:, :num_positions]
            drawn = GumbelNoise.draw(self._keys_B, positions_BJ, vocab_size, Stream.SHARED)
        elif drawn.num_positions < num_positions:
            positions_BJ = self._positions_BJ[:, drawn.num_positions :]
            drawn = drawn.followed_by(GumbelNoise.draw(self._keys_B, positions_BJ, vocab_size, Stream.SHARED))
        self._drawn[vocab_size] = drawn
        return drawn


class _PartOfNoises(Noises):
    def __init__(self, whole: Noises, index_N: torch.Tensor) -> None:
        super().__init__(whole._keys_B[index_N], whole._positions_BJ[index_N])
        self._whole, self._index_N = whole, index_N

    def _upto(self, vocab_size: int, num_positions: int) -> GumbelNoise:
        drawn = self._drawn.get(vocab_size)
        if drawn is None or drawn.num_positions < num_positions:
            drawn = self._drawn[vocab_size] = self._whole._upto(vocab_size, num_positions).of(self._index_N)
        return drawn


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
