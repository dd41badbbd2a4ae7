"""The measurement at load finds every kind of dependence on the batch, and is content where there is none.

The model here is a toy of whole numbers, so that nothing but the planted fault depends on the batch. The kernels of a
GPU are measured in `tests/decoding/gpu/interpreted/test_invariance.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from decoding.fused import kernels
from decoding.network.invariance import is_invariant
from decoding.network.language_model import LanguageModel
from tests.decoding.families import WIDE
from tests.decoding.tiny import build, llama_config

VOCAB_SIZE = 7
LAST_BIT = 2.0**-20  # of a number near 8


@dataclass(frozen=True)
class Scored:
    """A token that is scored, and what it is scored beside."""

    num_rows: int
    num_tokens: int  # of each row
    slot: int
    position: int
    neighbours: tuple[int, ...]  # the last tokens of the rows in the same forward
    num_prefilled_rows: int  # of the forward that read this row's prompt
    time: int  # how often the same forward has run before

    @property
    def num_lines(self) -> int:
        return self.num_rows * self.num_tokens


Fault = Callable[[Scored], bool]


class ToyModel:
    """Logits that are whole numbers made of a row's tokens so far, and one bit more where `fault` says."""

    vocab_size = VOCAB_SIZE
    device = torch.device("cpu")

    def __init__(
        self, fault: Fault = lambda _: False, *, max_positions: int | None = None, graphs: object = None
    ) -> None:
        """`graphs` is anything but None for a model whose forwards are recorded."""
        self.fault, self.max_positions, self.graphs = fault, max_positions, graphs
        self.cache: list[list[int]] | None = None
        self.longest = 0
        self._num_prefilled_rows, self._earlier = 0, [([], [])]

    def allocate(self, num_slots: int, num_positions: int) -> None:
        self.cache = [[] for _ in range(num_slots)]
        self.longest = max(self.longest, num_positions)

    def prefill(self, slots, token_ids) -> None:
        self._num_prefilled_rows = len(token_ids)
        for slot, tokens in zip(slots, token_ids, strict=True):
            self.cache[slot] = list(tokens)

    def forward(self, starts, tokens_BT, logits_at_BJ) -> torch.Tensor:
        assert logits_at_BJ.tolist() == [list(range(tokens_BT.shape[1]))] * len(starts)
        self._earlier.append((list(starts), tokens_BT.tolist()))
        time = next(time for time, each in enumerate(self._earlier[::-1]) if each != self._earlier[-1]) - 1
        rows = []
        for slot, (start, tokens) in enumerate(zip(starts, tokens_BT.tolist(), strict=True)):
            self.cache[slot][start:] = tokens
            others = tuple(row[-1] for other, row in enumerate(tokens_BT.tolist()) if other != slot)
            rows.append([])
            for position in range(start, start + len(tokens)):
                text = self.cache[slot][: position + 1]
                place = (slot, position, others, self._num_prefilled_rows, time)
                bit = LAST_BIT * self.fault(Scored(len(starts), len(tokens), *place))
                number = sum((place + 1) * token for place, token in enumerate(text))
                rows[-1].append([8.0 + number * (entry + 1) % 7 + bit for entry in range(VOCAB_SIZE)])
        return torch.tensor(rows)


def test_a_model_whose_numbers_are_those_of_the_row_alone_is_invariant():
    assert is_invariant(ToyModel())
    assert is_invariant(ToyModel(graphs=object()))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda it: it.num_lines > 1, id="more than one line"),
        pytest.param(lambda it: 16 < it.num_lines <= 32, id="the tile of 32 lines"),
        pytest.param(lambda it: 32 < it.num_lines <= 64, id="the tile of 64 lines"),
        pytest.param(lambda it: 64 < it.num_lines <= 128, id="the tile of 128 lines"),
        pytest.param(lambda it: it.num_lines > 500, id="very many lines"),
        pytest.param(lambda it: it.num_tokens > 1, id="K + 1 positions"),
        pytest.param(lambda it: it.num_tokens > 8, id="many positions"),
        pytest.param(lambda it: it.num_tokens > 1 and it.num_rows == 1, id="K + 1 positions of a row by itself"),
        pytest.param(lambda it: it.num_tokens > 1 and it.num_rows > 1, id="K + 1 positions beside other rows"),
        pytest.param(lambda it: it.num_tokens == 1 and it.num_rows > 1, id="one position beside other rows"),
        pytest.param(lambda it: it.num_rows > 1, id="other rows"),
        pytest.param(lambda it: it.num_rows > 16, id="many other rows"),
        pytest.param(lambda it: it.slot > 0, id="another slot"),
        pytest.param(lambda it: sum(it.neighbours) % 2 == 1, id="what the other rows say"),
        pytest.param(lambda it: it.num_prefilled_rows > 1, id="prompts that are read together"),
        pytest.param(lambda it: it.num_tokens > 1 and it.position >= 512, id="another chunk of keys"),
        pytest.param(lambda it: it.num_tokens > 1 and it.position == 506 + 15, id="the last token alone"),
    ],
)
def test_a_dependence_is_found(fault: Fault):
    assert not is_invariant(ToyModel(fault))


@pytest.mark.parametrize("time", [1, 2], ids=["recorded", "replayed"])
def test_a_recording_that_computes_something_else_is_found(time):
    """Forwards run plain at first, then while they are recorded, and then as a replay."""
    model = ToyModel(lambda it: it.time == time, graphs=object())
    assert not is_invariant(model)
    assert is_invariant(ToyModel(model.fault)), "without recordings each forward runs once"


def test_the_cache_is_lost_and_also_when_the_model_raises():
    model = ToyModel()
    is_invariant(model)
    assert model.cache is None

    def raises(_: Scored) -> bool:
        raise RuntimeError("out of memory")

    model = ToyModel(raises)
    with pytest.raises(RuntimeError):
        is_invariant(model)
    assert model.cache is None


@pytest.mark.parametrize("max_positions", [20, 100, 522, 4096])
def test_a_model_is_measured_within_the_positions_that_it_sees(max_positions):
    model = ToyModel(max_positions=max_positions)
    assert is_invariant(model)
    assert model.longest <= max_positions
    assert not is_invariant(ToyModel(lambda it: it.num_rows > 1, max_positions=max_positions))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_our_kernels_on_a_cpu_are_measured_to_be_what_they_were_made_to_be(dtype):
    if kernels.load(dtype, 16, 64) is None:
        pytest.skip("no C++ compiler here, or a processor without such kernels")
    model = LanguageModel(
        build(llama_config(**(WIDE | {"max_position_embeddings": 600})), seed=1).to(dtype), frozenset()
    )
    model.speed_up()
    assert model.is_batch_invariant
    assert is_invariant(model)
