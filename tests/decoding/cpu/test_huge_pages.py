"""Memory in huge pages holds what is copied into it, and what does not fit goes to ordinary memory."""

import mmap

import pytest
import torch

from decoding.cpu.huge_pages import HugePages


def test_copies_lie_beside_each_other_and_keep_their_values():
    memory = HugePages(1000)
    first = torch.arange(7, dtype=torch.float32)
    second = torch.arange(24, dtype=torch.bfloat16).view(2, 3, 4).transpose(0, 1)  # not contiguous
    copies = [memory.copy(first), memory.copy(second)]
    assert torch.equal(copies[0], first)
    assert torch.equal(copies[1], second)
    assert copies[1].is_contiguous()
    assert all(copy.data_ptr() % 64 == 0 for copy in copies)
    assert 0 < copies[1].data_ptr() - copies[0].data_ptr() < 1000


def test_a_copy_outlives_the_memory_it_came_from():
    copy = HugePages(100).copy(torch.ones(20))
    assert copy.sum() == 20


def test_what_does_not_fit_goes_into_ordinary_memory():
    memory = HugePages(1)
    large = torch.randn(3 << 20)
    assert torch.equal(memory.copy(large), large)
    assert torch.equal(memory.copy(torch.ones(5)), torch.ones(5))


@pytest.mark.parametrize("is_known", [True, False])
def test_a_system_without_huge_pages_gives_ordinary_ones(monkeypatch, is_known):
    class Mapping(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError("not here")

    monkeypatch.setattr(mmap, "mmap", Mapping)
    if not is_known:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert torch.equal(HugePages(100).copy(torch.ones(5)), torch.ones(5))
