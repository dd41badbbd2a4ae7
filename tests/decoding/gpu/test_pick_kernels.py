"""The kernels of picks as they would be launched and compiled for GPUs, none of which is needed here."""

import pytest
import torch

from benchmarks.roofline.multiprocessor import MULTIPROCESSORS
from decoding import SamplingParams
from decoding.gpu.available import is_interpreted
from decoding.gpu.kernels import picks as kernels
from decoding.gpu.pick_table import PickTable
from decoding.gpu.picks import Counted, PickInputs, pick
from tests.decoding.gpu.compiled import CAPABILITIES, Launch, recorded
from tests.decoding.gpu.operations import Operations

pytestmark = pytest.mark.skipif(is_interpreted(), reason="a kernel is compiled or interpreted")


def _launched(num_rows: int, num_positions: int, vocab_size: int, dtype: torch.dtype, **fields: object) -> list[Launch]:
    """The launches of a pick, and the operations beside them must be none."""
    params = [SamplingParams(**fields)] * num_rows
    keys, lengths = list(range(num_rows)), [7] * num_rows
    table = PickTable.build(params, keys, [frozenset({2, 3})] * num_rows, lengths, torch.device("cpu"))
    counted = Counted(torch.zeros(2, vocab_size, dtype=torch.int32), torch.zeros(num_rows, dtype=torch.int64))
    drafted_BK = torch.zeros(num_rows, num_positions - 1, dtype=torch.int64)
    inputs = PickInputs(table, table.biases_of(vocab_size), torch.tensor(lengths), drafted_BK, counted)
    logits_BJV = torch.empty(num_rows, num_positions, vocab_size, dtype=dtype)
    with recorded(kernels) as launches, Operations() as operations:
        pick(logits_BJV, inputs, 0)
    assert not operations.launches
    assert not operations.waits
    return launches


def test_a_pick_is_two_launches_and_no_wait_whatever_the_batch():
    """At 128 rows, temperature 0.8, top-p 0.95, 151,936 tokens, torch starts over a thousand operations, and waits."""
    for num_rows, num_positions in ((1, 1), (128, 5)):
        launches = _launched(num_rows, num_positions, 151_936, torch.bfloat16, temperature=0.8, top_p=0.95)
        assert [launch.kernel.fn.__name__ for launch in launches] == ["summarize", "pick"]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(151_936, torch.bfloat16), (128_256, torch.bfloat16), (151_936, torch.float32)]
)
def test_the_kernels_of_picks_spill_nothing(vocab_size, dtype, capability):
    for launch in _launched(8, 5, vocab_size, dtype):
        compiled = launch.compiled(capability)
        assert compiled.num_spilled_bytes == 0, launch.kernel.fn.__name__
        assert compiled.num_shared_bytes <= MULTIPROCESSORS[capability].shared_bytes_of_a_program
        assert compiled.num_registers <= 128  # so that 16 warps of them fit a multiprocessor
        assert "fma.rn.f32" not in compiled.ptx  # a product is rounded before it is added, as everywhere
