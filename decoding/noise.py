"""Counter-based noise: pure functions from (seed, row, sample, position, token) to numbers, with no state to lose.

The hash is splitmix64 (Steele, Lea, Flood, OOPSLA 2014, https://doi.org/10.1145/2660193.2660195) on int64 tensors,
whose multiplication wraps identically on every device. Nothing here knows about batches, slots or drafts, which is why
the tokens drawn with it cannot depend on them.

Shapes: B sequences, J positions, V vocabulary.
"""

import math
from enum import IntEnum

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """What a number is for. Two purposes never share a number: sharing is only valid under accept-iff-equal."""

    SHARED = 0  # coupled verification: the drafter and the target read the same noise
    DRAFT = 1  # rejection: the drafter's own draw
    ACCEPT = 2  # rejection: the accept test
    RECOVER = 3  # rejection: the recovered or bonus token


def noise_key(seed: int, row: int, sample: int) -> int:
    """The key of one sample's noise, a signed 64-bit integer; the same arguments always give the same key."""
    state = 0
    for part in (seed, row, sample):
        state = _mix_int((state + _GOLDEN + part) & _MASK)
    return _signed(state)


def gumbel(keys_B: torch.Tensor, positions_BJ: torch.Tensor, vocab_size: int, stream: Stream) -> torch.Tensor:
    """Standard Gumbel noise, float32 [B, J, V], a function of key, position, token id and stream alone.

    `argmax(log p + gumbel)` is a draw from p (the Gumbel-max trick, Maddison et al., arXiv 1411.0030). Values lie in
    about [-2.9, 37.5], always finite.
    """
    tokens_V = torch.arange(vocab_size, device=keys_B.device)
    hash_BJV = _mix(_position_hash(keys_B, positions_BJ, stream)[..., None] + tokens_V * _signed(_GOLDEN))
    # Small u is large noise, and float32 is finest near zero: the tail that decides rare tokens has no coarse grid.
    uniform_BJV = _unit_interval(hash_BJV).float().clamp_(max=1 - 2**-24)
    return uniform_BJV.neg_().log1p_().neg_().log_().neg_()


def uniform(keys_B: torch.Tensor, positions_BJ: torch.Tensor, stream: Stream) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64 [B, J]."""
    return _unit_interval(_mix(_position_hash(keys_B, positions_BJ, stream)))


def _position_hash(keys_B: torch.Tensor, positions_BJ: torch.Tensor, stream: Stream) -> torch.Tensor:
    counter_BJ = positions_BJ * len(Stream) + int(stream)
    return _mix(keys_B[:, None] + _mix(counter_BJ * _signed(_GOLDEN)))


def _unit_interval(hashes: torch.Tensor) -> torch.Tensor:
    top_53_bits = _shift_right(hashes, 11)
    # The largest of them would round to 1.
    return top_53_bits.double().add_(0.5).mul_(math.ldexp(1.0, -53)).clamp_(max=1 - 2**-53)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, _SHIFTS[0])) * _signed(_MULTIPLIERS[0])
    x = (x ^ _shift_right(x, _SHIFTS[1])) * _signed(_MULTIPLIERS[1])
    return x ^ _shift_right(x, _SHIFTS[2])


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # int64 >> copies the sign; the mask makes the shift logical


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> _SHIFTS[0])) * _MULTIPLIERS[0]) & _MASK
    x = ((x ^ (x >> _SHIFTS[1])) * _MULTIPLIERS[1]) & _MASK
    return x ^ (x >> _SHIFTS[2])


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
