"""What the recordings of a round read of rows that are not there."""

import torch

from decoding import SamplingParams
from decoding.engine.rounds.overlapped.inputs import InputBuffers, RoundInputs
from decoding.gpu.pick_table import Column, PickTable


def table_of(*params: SamplingParams) -> PickTable:
    num_rows = len(params)
    return PickTable.build(params, [0] * num_rows, [frozenset()] * num_rows, [1] * num_rows, torch.device("cpu"))


def test_padding_has_no_penalties_whatever_the_rows_had_that_were_there():
    """Counts may not exist in its round: the kernels would follow an address of nothing."""
    plain, penalized = SamplingParams(), SamplingParams(presence_penalty=1.0)
    table = table_of(penalized, plain, penalized)
    buffers = InputBuffers(4, 0, table)
    for _ in range(2):
        buffers.take(RoundInputs([0] * 3, [True] * 3, {}), table)
        assert buffers.columns_BC[:, Column.USES_COUNTS].tolist() == [1, 0, 1, 0]
        buffers.take(RoundInputs([0], [True], {}), table_of(plain))
        assert not buffers.columns_BC[:, Column.USES_COUNTS].any()
