"""Counter-based noise: pure functions from (seed, row, sample, position, token) to numbers, with no state to lose.

The hash is splitmix64 (Steele, Lea, Flood, OOPSLA 2014, https://doi.org/10.1145/2660193.2660195) on int64 tensors,
whose multiplication wraps identically on every device. Nothing here knows about batches, slots or drafts, which is why
the tokens drawn with it cannot depend on them.

Shapes: B sequences, J positions, V vocabulary, N blocks of it.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch

BLOCK = 64  # tokens that share a bound on their noise
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """What a number is for. Two purposes never share a number: sharing is only valid under accept-if-equal."""

    SHARED = 0  # coupled verification: the drafter and the target read the same noise
    DRAFT = 1  # rejection and unadjusted: the drafter's own draw
    ACCEPT = 2  # rejection and unadjusted: the accept test
    RECOVER = 3  # rejection and unadjusted: the recovered or bonus token


def noise_key(seed: int, row: int, sample: int, attempt: int = 0) -> int:
    """Return the key of one sample's noise, a signed 64-bit integer; equal arguments always give the same key.

    Another attempt at a sample has the noise that no other sample has: it counts as one beyond all that a row can have.
    """
    state = 0
    for part in (seed, row, attempt << 32 | sample):
        state = _mix_int((state + GOLDEN + part) & _MASK)
    return _signed(state)


@dataclass(frozen=True)
class GumbelNoise:
    """Standard Gumbel noise of B x J positions: the largest number of each block of 64 tokens, the others on demand.

    A number is a function of key, position, token id and stream alone; values lie in about [-3, 42], always finite.
    `argmax(log p + noise)` is a draw from p (the Gumbel-max trick, Maddison et al., arXiv 1411.0030). A Gumbel number
    is -log of an exponential one. The least of 64 exponential numbers is exponential with rate 64, is any of the 64
    with equal chance, and the differences of the others to it are exponential again. So one hash bounds a whole block,
    and most tokens never need a number of their own.
    """

    keys_BJ: torch.Tensor  # of the numbers inside the blocks, int64
    least_BJN: torch.Tensor  # the least exponential number of each block, float32
    largest_BJN: torch.Tensor  # its Gumbel number, which none in the block exceeds
    holder_BJN: torch.Tensor  # the token id that has it, int64; may lie beyond the vocabulary in the last block

    @classmethod
    def draw(cls, keys_B: torch.Tensor, positions_BJ: torch.Tensor, vocab_size: int, stream: Stream) -> "GumbelNoise":
        """Draw the noise of these rows at these positions, for token ids below `vocab_size`."""
        block_N = torch.arange(-(-vocab_size // BLOCK), device=keys_B.device)
        keys_BJ = _position_hash(keys_B, positions_BJ, stream)
        hash_BJN = _mix(keys_BJ[..., None] + (block_N + 1) * _signed(GOLDEN))
        # Small u is large noise, and float32 is finest near zero: the tail that decides rare tokens has no coarse grid.
        least_BJN = _exponential(hash_BJN).div_(BLOCK)
        holder_BJN = block_N * BLOCK + (hash_BJN & (BLOCK - 1))  # bits that the exponential number does not use
        return cls(_mix(keys_BJ), least_BJN, least_BJN.log().neg_(), holder_BJN)

    def of(self, rows: slice | torch.Tensor, positions: slice = slice(None)) -> "GumbelNoise":
        """Return the same numbers for some of the rows and positions."""
        return GumbelNoise(*(field[rows, positions] for field in vars(self).values()))

    @property
    def num_positions(self) -> int:
        return self.keys_BJ.shape[1]

    def followed_by(self, other: "GumbelNoise") -> "GumbelNoise":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return GumbelNoise(*(torch.cat(pair, dim=1) for pair in pairs))

    def at(self, rows: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return single tokens' numbers, float32; `rows` (indexes into B x J, flattened) broadcasts against the ids."""
        num_blocks = self.least_BJN.shape[-1]
        blocks = rows * num_blocks + token_ids.div(BLOCK, rounding_mode="trunc")
        return _gumbel_of(self.keys_BJ.take(rows), self.least_BJN.take(blocks), self.holder_BJN.take(blocks), token_ids)

    def holder_of(self, rows: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Return the token ids that have the largest numbers of these blocks; `rows` as in `at`."""
        return self.holder_BJN.take(rows * self.holder_BJN.shape[-1] + blocks)

    def dense(self, vocab_size: int) -> torch.Tensor:
        """Return the numbers of all tokens, [B, J, V]."""
        num_blocks = self.least_BJN.shape[-1]
        tokens_NM = torch.arange(num_blocks * BLOCK, device=self.keys_BJ.device).view(num_blocks, BLOCK)
        keys, least, holders = self.keys_BJ[..., None, None], self.least_BJN[..., None], self.holder_BJN[..., None]
        return _gumbel_of(keys, least, holders, tokens_NM).flatten(-2)[..., :vocab_size]


def uniform(keys_B: torch.Tensor, positions_BJ: torch.Tensor, stream: Stream) -> torch.Tensor:
    """Return uniform numbers in (0, 1), float64 [B, J]."""
    return _unit_interval(_mix(_position_hash(keys_B, positions_BJ, stream)))


def _gumbel_of(keys: torch.Tensor, least: torch.Tensor, holders: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    above = _exponential(_mix(keys + (token_ids + 1) * _signed(GOLDEN)))
    return above.masked_fill_(token_ids == holders, 0.0).add_(least).log_().neg_()


def _exponential(hashes: torch.Tensor) -> torch.Tensor:
    """Turn hashes into exponential numbers of rate 1, float32, positive and finite: -log(1 - u)."""
    minus_u = (_shift_right(hashes, 11)).double().add_(0.5).mul_(-math.ldexp(1.0, -53)).float()
    return minus_u.clamp_(min=2**-24 - 1).log1p_().neg_()


def round_keys(keys_B: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """Return the keys of the rounds that begin at these lengths, int64 [B]."""
    return _mix(keys_B + _mix((lengths_B + 1) * _signed(GOLDEN)))


def _position_hash(keys_B: torch.Tensor, positions_BJ: torch.Tensor, stream: Stream) -> torch.Tensor:
    counter_BJ = positions_BJ * len(Stream) + int(stream)
    return _mix(keys_B[:, None] + _mix(counter_BJ * _signed(GOLDEN)))


def _unit_interval(hashes: torch.Tensor) -> torch.Tensor:
    top_53_bits = _shift_right(hashes, 11)
    # The largest hash would round to 1.
    return top_53_bits.double().add_(0.5).mul_(math.ldexp(1.0, -53)).clamp_(max=1 - 2**-53)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = _shift_right(x, SHIFTS[0]).bitwise_xor_(x).mul_(_signed(MULTIPLIERS[0]))
    x = _shift_right(x, SHIFTS[1]).bitwise_xor_(x).mul_(_signed(MULTIPLIERS[1]))
    return _shift_right(x, SHIFTS[2]).bitwise_xor_(x)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    # int64 >> copies the sign; the mask makes the shift logical.
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]) & _MASK
    x = ((x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]) & _MASK
    return x ^ (x >> SHIFTS[2])


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
