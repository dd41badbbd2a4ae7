"""The noise is a pure function with known values, independent of shapes, with the right distribution."""

import math

import pytest
import torch
from scipy import stats

from decoding.noise import BLOCK, GumbelNoise, Stream, _exponential, _mix, _mix_int, _unit_interval, noise_key, uniform

UNSIGNED = 2**64 - 1  # the bits of a number of 64 bits, without a sign


def gumbel(keys_B: torch.Tensor, positions_BJ: torch.Tensor, vocab_size: int, stream: Stream) -> torch.Tensor:
    return GumbelNoise.draw(keys_B, positions_BJ, vocab_size, stream).dense(vocab_size)


def _keys(n: int) -> torch.Tensor:
    return torch.tensor([noise_key(7, row, 0) for row in range(n)])


def test_keys_have_the_values_they_always_had():
    # Changing any of these changes every text that was ever generated at temperature > 0.
    assert noise_key(0, 0, 0) == 2558736989570252433
    assert noise_key(1, 2, 3) == 7702586659592502839
    assert noise_key(-1, 2**40, 5) == noise_key(2**64 - 1, 2**40, 5)


def test_the_hash_is_the_published_splitmix64():
    # The reference generator's first outputs from state 1234567 (https://prng.di.unimi.it/splitmix64.c).
    golden = 0x9E3779B97F4A7C15
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [_mix_int((1234567 + (i + 1) * golden) & UNSIGNED) for i in range(3)] == expected


def test_the_tensor_hash_equals_the_integer_hash():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-(2**63), 2**63 - 1, (500,), generator=generator)
    assert [found & UNSIGNED for found in _mix(values).tolist()] == [_mix_int(v & UNSIGNED) for v in values.tolist()]


def test_numbers_have_the_values_they_always_had():
    keys, positions = torch.tensor([noise_key(1, 2, 3)]), torch.tensor([[17]])
    assert uniform(keys, positions, Stream.ACCEPT).item() == pytest.approx(0.6234001195254653, abs=1e-15)
    found = gumbel(keys, positions, 3, Stream.SHARED)
    assert found.dtype is torch.float32, "in another type near ties would fall otherwise"
    assert found[0, 0].tolist() == pytest.approx(
        [0.10846897959709167, 0.6408880949020386, -1.0384387969970703], abs=1e-6
    )


@pytest.mark.parametrize("stream", Stream)
def test_a_number_does_not_depend_on_the_other_numbers_drawn(stream):
    keys, positions = _keys(4), torch.arange(20).reshape(4, 5) * 13
    together = gumbel(keys, positions, 11, stream)
    together_uniform = uniform(keys, positions, stream)
    for row in range(4):
        for column in range(5):
            alone = (keys[row : row + 1], positions[row : row + 1, column : column + 1])
            assert torch.equal(gumbel(*alone, 7, stream)[0, 0], together[row, column, :7])
            assert uniform(*alone, stream).item() == together_uniform[row, column]


def test_different_arguments_give_different_numbers():
    parts = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 1, 0)]
    keys = torch.tensor([noise_key(*part) for part in parts])
    numbers = torch.stack([uniform(keys, torch.arange(50).expand(6, -1), stream) for stream in Stream])
    assert numbers.unique().numel() == numbers.numel()


def test_streams_are_uncorrelated():
    keys, positions = _keys(200), torch.arange(200).expand(200, -1)
    numbers = torch.stack([uniform(keys, positions, stream).flatten() for stream in Stream])
    assert (torch.corrcoef(numbers) - torch.eye(len(Stream))).abs().max() < 0.02


def test_neighbouring_rows_positions_and_tokens_are_uncorrelated():
    noise = gumbel(_keys(60), torch.arange(60).expand(60, -1), 60, Stream.SHARED).double()
    pairs = [(noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1]), (noise[..., 1:], noise[..., :-1])]
    for first, second in pairs:
        assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.02


def test_gumbel_numbers_follow_the_gumbel_distribution_and_slightly_shifted_ones_do_not():
    noise = gumbel(_keys(100), torch.arange(20).expand(100, -1), 50, Stream.SHARED).flatten().numpy()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-6
    assert stats.kstest(noise + 0.03, stats.gumbel_r.cdf).pvalue < 1e-6


def test_the_extremes_of_the_unit_interval_are_never_reached():
    extremes = _unit_interval(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert extremes.min() > 0
    assert extremes.max() < 1


def test_gumbel_noise_is_finite_at_the_extremes():
    above = _exponential(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert above.min() > 0
    least = torch.stack([above.min(), above.max()]) / BLOCK
    noise = -torch.stack([least, least + above.max()]).log()
    assert noise.isfinite().all()
    assert noise.min() > -3
    assert 41 < noise.max() < 42


def test_noise_far_out_in_the_tail_is_not_on_a_coarse_grid():
    noise = gumbel(_keys(300), torch.arange(20).expand(300, -1), 50, Stream.SHARED)
    tail = noise[noise > 8]
    assert tail.numel() > 50
    assert tail.unique().numel() == tail.numel()


def test_a_number_is_the_same_alone_as_among_all():
    noise = GumbelNoise.draw(_keys(3), torch.arange(12).reshape(3, 4), 300, Stream.SHARED)
    dense = noise.dense(300)
    rows, tokens = torch.randint(12, (50, 1)), torch.randint(300, (50, 7))
    assert torch.equal(noise.at(rows, tokens), dense.flatten(0, 1)[rows, tokens])
    part = noise.of(torch.tensor([2, 0]), slice(1, 3))
    assert torch.equal(part.dense(300), dense[[2, 0], 1:3])


def test_no_number_exceeds_its_blocks_largest_which_its_holder_has():
    noise = GumbelNoise.draw(_keys(40), torch.arange(20).expand(40, -1), 5 * BLOCK, Stream.SHARED)
    blocks = noise.dense(5 * BLOCK).unflatten(-1, (5, BLOCK))
    assert torch.equal(blocks.amax(-1), noise.largest_BJN)
    assert torch.equal(blocks.argmax(-1) + torch.arange(5) * BLOCK, noise.holder_BJN)


def test_the_largest_number_of_a_block_follows_its_distribution_and_has_any_place():
    noise = GumbelNoise.draw(_keys(100), torch.arange(50).expand(100, -1), 4 * BLOCK, Stream.SHARED)
    largest, places = noise.largest_BJN.flatten(), (noise.holder_BJN % BLOCK).flatten()
    assert stats.kstest(largest.numpy(), stats.gumbel_r(loc=math.log(BLOCK)).cdf).pvalue > 1e-6
    assert stats.chisquare(torch.bincount(places, minlength=BLOCK).numpy()).pvalue > 1e-6
    assert abs(torch.corrcoef(torch.stack([largest, places]))[0, 1]) < 0.03, "its place depends on its size"


def test_tokens_of_a_block_follow_the_distribution_and_are_independent():
    noise = gumbel(_keys(100), torch.arange(100).expand(100, -1), 2 * BLOCK, Stream.SHARED).flatten(0, 1)
    for token in (0, 1, 31, 63, 64, 127):
        assert stats.kstest(noise[:, token].numpy(), stats.gumbel_r.cdf).pvalue > 1e-6
    # Ranks: a dependence in the tail, where blocks share their least number, would show here.
    uniform_numbers = (-(-noise.double()).exp()).exp()
    correlation = torch.corrcoef(uniform_numbers.T) - torch.eye(2 * BLOCK)
    assert correlation.abs().max() < 0.06
    is_high = (uniform_numbers > 0.9).double()
    both = is_high.T @ is_high / len(is_high)
    both.fill_diagonal_(0.01)
    assert (both - 0.01).abs().max() < 0.006


def test_blocks_in_which_all_numbers_are_equal_fail_the_same_check(monkeypatch):
    monkeypatch.setattr("decoding.noise._gumbel_of", lambda keys, least, holders, ids: -least.log() + 0 * ids)
    noise = gumbel(_keys(100), torch.arange(100).expand(100, -1), BLOCK, Stream.SHARED)
    assert stats.kstest(noise[..., 5].flatten().numpy(), stats.gumbel_r.cdf).pvalue < 1e-6
