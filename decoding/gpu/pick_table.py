"""PickTable: the sampling parameters of a batch's rows as one tensor, which the kernels of a pick read on the device.

One row of the table is one row of the batch. All columns are 64 bits wide, floats are stored as their bits, so one copy
brings everything to the device, and one copy puts it where a recorded CUDA graph reads it.

Shapes: B rows, C columns, S stop ids, U different parameters, R of them with biases, E biased ids, V vocabulary.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from enum import IntEnum

import torch

from decoding.device import to_device
from decoding.sampling_params import SamplingParams


class Column(IntEnum):
    """What the columns hold; a row's stop ids follow, padded with -1."""

    KEY = 0  # of the row's noise
    MIN_LENGTH = 1  # prompt and output together, before a stop id may be drawn; 0: none
    SAMPLES = 2  # 0: greedy; then the temperature is 1, and nothing is cut
    TOP_K = 3  # 0: none
    USES_COUNTS = 4  # whether there are penalties
    BIAS_ROW = 5  # of the table of biases; -1: no bias
    TEMPERATURE = 6  # from here on float64
    TOP_P = 7  # 1: none
    LOG_MIN_P = 8  # -inf: none
    REPETITION = 9
    PRESENCE = 10
    FREQUENCY = 11


@dataclass(frozen=True)
class Biases:
    """Numbers that are added to logits, R sets of them, padded with value 0."""

    ids_RE: torch.Tensor
    values_RE: torch.Tensor
    _dense: dict[int, torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, biases: Seq[Mapping[int, float]], device: torch.device) -> "Biases":
        width = max(map(len, biases))
        ids = [[*bias, *[0] * (width - len(bias))] for bias in biases]
        values = [[*bias.values(), *[0.0] * (width - len(bias))] for bias in biases]
        return cls(to_device(ids, device, torch.int64), to_device(values, device, torch.float32))

    def take(self, index_N: torch.Tensor) -> "Biases":
        return Biases(self.ids_RE[index_N], self.values_RE[index_N])

    def dense(self, vocab_size: int) -> torch.Tensor:
        """Return the numbers of all token ids, float32 [R, V], always the same tensor."""
        if vocab_size not in self._dense:
            nothing_RV = self.values_RE.new_zeros(len(self.ids_RE), vocab_size)
            self._dense[vocab_size] = nothing_RV.scatter_add_(1, self.ids_RE, self.values_RE)
        return self._dense[vocab_size]


@dataclass(frozen=True)
class PickTable:
    """The parameters of B rows."""

    columns_BC: torch.Tensor  # int64
    biases: Biases | None
    uses_counts: tuple[bool, ...] = ()  # which rows have penalties, as the host knows it

    @classmethod
    def build(
        cls,
        params: Seq[SamplingParams],
        keys: Seq[int],
        stop_ids: Seq[frozenset[int]],
        prompt_lengths: Seq[int],
        device: torch.device,
    ) -> "PickTable":
        """Return the table of these rows, in this order: one copy to the device, two more if some have a bias."""
        different = {id(p): p for p in params}  # most rows share their parameters
        place_of = {name: place for place, name in enumerate(different)}
        places_B = torch.tensor([place_of[id(p)] for p in params], dtype=torch.int64)
        biases = [p.logit_bias for p in different.values() if p.logit_bias]
        own_BC = _columns(list(different.values()))[places_B]
        min_tokens_B = own_BC[:, Column.MIN_LENGTH]
        lengths_B = torch.tensor(list(prompt_lengths), dtype=torch.int64)
        own_BC[:, Column.MIN_LENGTH] = torch.where(min_tokens_B > 0, lengths_B + min_tokens_B, 0)
        own_BC[:, Column.KEY] = torch.tensor(list(keys), dtype=torch.int64)
        num_stop_ids = max(map(len, stop_ids), default=0)
        padded = [sorted(ids) + [-1] * (num_stop_ids - len(ids)) for ids in stop_ids]
        stop_ids_BS = torch.tensor(padded, dtype=torch.int64).view(len(params), num_stop_ids)
        columns_BC = torch.cat([own_BC, stop_ids_BS], dim=1).to(device, non_blocking=True)
        uses_counts = tuple(p.uses_token_counts for p in params)
        return cls(columns_BC, Biases.of(biases, device) if biases else None, uses_counts)

    @property
    def num_stop_ids(self) -> int:
        return self.columns_BC.shape[1] - len(Column)

    def biases_of(self, vocab_size: int) -> torch.Tensor:
        """Return the biases of all token ids, float32 [R, V]: on the device, and the same tensor each time."""
        if self.biases is None:
            return torch.empty(0, dtype=torch.float32, device=self.columns_BC.device)
        return self.biases.dense(vocab_size)

    def take(self, rows: Seq[int], index_N: torch.Tensor) -> "PickTable":
        """Return the table of some of the rows, given as numbers and as a tensor. The biases stay where they are."""
        uses_counts = tuple(self.uses_counts[row] for row in rows)
        return replace(self, columns_BC=self.columns_BC[index_N], uses_counts=uses_counts)


def _columns(params: Seq[SamplingParams]) -> torch.Tensor:
    """Return the columns [U, C] of these parameters; where a row's prompt counts, without it."""
    integers, floats, num_biases = [], [], 0
    for p in params:
        bias_row = num_biases if p.logit_bias else -1
        num_biases += bool(p.logit_bias)
        top_k, top_p, log_min_p, temperature = 0, 1.0, -math.inf, 1.0
        if not p.is_greedy:
            top_k, top_p, temperature = p.top_k, p.top_p, p.temperature
            log_min_p = math.log(p.min_p) if p.min_p else -math.inf
        integers.append([0, p.min_tokens, not p.is_greedy, top_k, p.uses_token_counts, bias_row])
        penalties = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        floats.append([float(number) for number in (temperature, top_p, log_min_p, *penalties)])
    floats_UC = torch.tensor(floats, dtype=torch.float64).view(torch.int64)
    return torch.cat([torch.tensor(integers, dtype=torch.int64), floats_UC], dim=1)
