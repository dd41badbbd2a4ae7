"""The short convolution of packed rows is that of each row alone, wherever a row is cut or rolled back."""

from collections.abc import Mapping

import pytest
import torch
from torch.nn import functional

from decoding.cpu import convolution
from decoding.states import packed_steps
from decoding.states.rows import RowStates, StateName

NAME = StateName(0, "conv")


class Windows:
    """Slots that keep windows of one convolution."""

    def __init__(self, num_channels: int, size: int, dtype: torch.dtype, *, has_bias: bool, activation: str | None):
        generator = torch.Generator().manual_seed(size)
        self.weight_CT = torch.randn(num_channels, size, generator=generator).to(dtype)
        self.bias_C = torch.randn(num_channels, generator=generator).to(dtype) if has_bias else None
        self.activation, self.states = activation, RowStates(3, 8)

    def read(self, rows: Mapping[int, tuple[int, torch.Tensor]], *, keeps_each: bool) -> list[torch.Tensor]:
        """Read columns [N, C] of the rows in these slots, packed end to end; each begins at a position."""
        lengths = [len(x_NC) for _, x_NC in rows.values()]
        starts = [start for start, _ in rows.values()]
        with self.states.planned(list(rows), starts, lengths, None, keeps_each=keeps_each), self.states.handles():
            x_NC1 = torch.cat([x_NC for _, x_NC in rows.values()])[..., None]
            handle = self.states.get(NAME)
            out_NC1 = packed_steps._window(x_NC1, handle, self.weight_CT, self.bias_C, self.activation)
        return list(out_NC1[..., 0].split(lengths))

    def alone(self, x_NC: torch.Tensor) -> torch.Tensor:
        """What torch's own convolution reads of a whole row."""
        num_channels, size = self.weight_CT.shape
        padded_1CT = functional.pad(x_NC.float().t()[None], (size - 1, 0))
        bias_C = None if self.bias_C is None else self.bias_C.float()
        out_NC = functional.conv1d(padded_1CT, self.weight_CT.float()[:, None], bias_C, groups=num_channels)[0].t()
        return functional.silu(out_NC) if self.activation else out_NC


def _columns(lengths: list[int], num_channels: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(num_channels)
    return [torch.randn(length, num_channels, generator=generator).to(dtype) for length in lengths]


@pytest.fixture(params=["kernel", "torch"])
def _path(request, monkeypatch):
    if request.param == "torch":  # a processor without kernels, and every GPU
        monkeypatch.setattr(convolution, "kernel", lambda dtype: None)
    elif convolution.kernel(torch.float32) is None:
        pytest.skip("there is no C++ compiler here")


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("has_bias", "activation"), [(True, "silu"), (False, "silu"), (True, None)])
@pytest.mark.parametrize(("num_channels", "size"), [(5, 4), (16, 2), (48, 3), (300, 4)])
def test_rows_that_are_cut_and_rolled_back_read_what_each_reads_alone(num_channels, size, has_bias, activation, dtype):
    windows = Windows(num_channels, size, dtype, has_bias=has_bias, activation=activation)
    rows = _columns([9, 6, 8], num_channels, dtype)
    junk = _columns([3, 4], num_channels, dtype)
    found = windows.read({2: (0, rows[2][:1]), 0: (0, rows[0][:5])}, keeps_each=False)
    parts = {2: [found[0]], 0: [found[1]], 1: []}
    # Of the drafted columns of row 0 the first is accepted, of those of row 2 none; row 1 begins beside them.
    windows.read({0: (5, torch.cat([rows[0][5:6], junk[0]])), 2: (1, junk[1])}, keeps_each=True)
    found = windows.read({1: (0, rows[1][:2]), 0: (5, rows[0][5:6]), 2: (1, rows[2][1:4])}, keeps_each=True)
    rest = windows.read({0: (6, rows[0][6:]), 1: (2, rows[1][2:]), 2: (4, rows[2][4:])}, keeps_each=True)
    for slot, first, last in ((0, found[1], rest[0]), (1, found[0], rest[1]), (2, found[2], rest[2])):
        parts[slot] += [first, last]
        expected = windows.alone(rows[slot])
        bound = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(torch.cat(parts[slot]).float(), expected, rtol=bound, atol=bound)


@pytest.mark.skipif(convolution.kernel(torch.float32) is None, reason="there is no C++ compiler here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", range(1, 8))
def test_a_row_that_is_cut_reads_the_same_bits_by_the_kernel(cut, dtype):
    (row,), windows = _columns([8], 24, dtype), Windows(24, 4, dtype, has_bias=True, activation="silu")
    (whole,) = windows.read({0: (0, row)}, keeps_each=False)
    pieces = windows.read({1: (0, row[:cut])}, keeps_each=False) + windows.read({1: (cut, row[cut:])}, keeps_each=True)
    assert torch.equal(torch.cat(pieces), whole)
