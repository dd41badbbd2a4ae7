"""Sums over three ranks have one order. With two ranks every order is the same one."""

import sys
from pathlib import Path

import torch

from decoding.gpu.available import is_interpreted
from decoding.ranks.sums import gathered, summed
from tests.decoding.ranks.processes import NUM_RANKS, join_ranks, leave_ranks, run_ranks


def parts_of(num_lines: int, dtype: torch.dtype) -> torch.Tensor:
    """What the ranks have of lines."""
    parts_RNO = torch.randn(NUM_RANKS, 64, 200, generator=torch.Generator().manual_seed(3))
    return parts_RNO[:, :num_lines].to(dtype)


def in_order(parts_RNO: torch.Tensor, bias_O: torch.Tensor, added_NO: torch.Tensor) -> torch.Tensor:
    """The sum that is promised."""
    return (((parts_RNO[0].float() + parts_RNO[1]) + parts_RNO[2]) + bias_O + added_NO).to(parts_RNO.dtype)


def main(port: str, folder: str, rank: int) -> None:
    """One of the ranks; whether each sum was right is left in a file."""
    join_ranks(port, rank)
    found = {"of nothing": gathered(torch.empty(1, 0, 5)).shape == (NUM_RANKS, 1, 0, 5)}
    # Triton's interpreter cuts numbers down to bfloat16, where a GPU rounds them.
    for dtype in (torch.float32,) if is_interpreted() else (torch.float32, torch.bfloat16):
        for num_lines in (1, 2, 17, 64):
            parts_RNO = parts_of(num_lines, dtype)
            bias_O, added_NO = parts_RNO[1, 0] / 3, parts_RNO[2] / 7
            right = in_order(parts_RNO, bias_O, added_NO)
            found[f"{dtype}, {num_lines}"] = torch.equal(summed(parts_RNO[rank], bias_O, added_NO), right)
    leave_ranks(folder, rank, found)


def test_parts_are_added_in_the_order_of_ranks_whatever_the_number_of_lines(tmp_path: Path) -> None:
    parts_RNO = parts_of(17, torch.float32)
    nothing_O = torch.zeros(200)
    assert not torch.equal(in_order(parts_RNO, nothing_O, nothing_O), parts_RNO.flip(0).sum(0))
    for found in run_ranks("tests.decoding.ranks.test_sums", tmp_path):
        assert all(found.values()), found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
