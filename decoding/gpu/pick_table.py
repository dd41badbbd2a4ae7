"""PickTable: the sampling parameters of a batch's rows as one tensor, which the kernels of a pick read on the device.

One row of the table is one row of the batch. All columns are 64 bits wide, floats are stored as their bits, so one copy
brings everything to the device, and one copy puts it where a recorded CUDA graph reads it.

Shapes: B rows, C columns, S stop ids, E biased ids, R rows with a bias, V vocabulary.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

from decoding.device import to_device
from decoding.sampling_params import SamplingParams


class Column(IntEnum):
    """What the columns hold; a row's stop ids follow, padded with -1."""

    KEY = 0  # of the row's noise
    SAMPLES = 1  # 0: greedy; then the temperature is 1, and nothing is cut
    MIN_LENGTH = 2  # prompt and output together, before a stop id may be drawn; 0: none
    TOP_K = 3  # 0: none
    USES_COUNTS = 4  # whether there are penalties
    BIAS_ROW = 5  # of the table of biases; -1: no bias
    TEMPERATURE = 6  # from here on float64
    TOP_P = 7  # 1: none
    LOG_MIN_P = 8  # -inf: none
    REPETITION = 9
    PRESENCE = 10
    FREQUENCY = 11


_FIRST_FLOAT = Column.TEMPERATURE


@dataclass(frozen=True)
class PickTable:
    """The parameters of B rows. Everything that a kernel reads is on the device; the host knows only the shapes."""

    columns_BC: torch.Tensor  # int64
    biases: tuple[torch.Tensor, torch.Tensor] | None  # token ids and values [R, E], padded with value 0

    @classmethod
    def build(
        cls,
        params: Seq[SamplingParams],
        keys: Seq[int],
        stop_ids: Seq[frozenset[int]],
        prompt_lengths: Seq[int],
        device: torch.device,
    ) -> "PickTable":
        """Return the table of these rows, in this order: one copy to the device, two more if rows have a bias."""
        num_stop_ids = max(map(len, stop_ids), default=0)
        biased = [p.logit_bias for p in params if p.logit_bias]
        integers, floats, num_biased = [], [], 0
        for p, key, ids, length in zip(params, keys, stop_ids, prompt_lengths, strict=True):
            is_greedy = p.is_greedy
            floats.append(
                [
                    1.0 if is_greedy else float(p.temperature),
                    1.0 if is_greedy else float(p.top_p),
                    math.log(p.min_p) if p.min_p and not is_greedy else -math.inf,
                    float(p.repetition_penalty),
                    float(p.presence_penalty),
                    float(p.frequency_penalty),
                ]
            )
            min_length = p.min_tokens and length + p.min_tokens
            bias_row = num_biased if p.logit_bias else -1
            num_biased += bool(p.logit_bias)
            top_k = 0 if is_greedy else p.top_k
            row = [key, not is_greedy, min_length, top_k, p.uses_token_counts, bias_row]
            integers.append([*row, *sorted(ids), *[-1] * (num_stop_ids - len(ids))])
        integers_BC = torch.tensor(integers, dtype=torch.int64).view(len(params), -1)
        floats_BC = torch.tensor(floats, dtype=torch.float64).view(torch.int64).view(len(params), -1)
        parts = (integers_BC[:, :_FIRST_FLOAT], floats_BC, integers_BC[:, _FIRST_FLOAT:])
        columns_BC = torch.cat(parts, dim=1).to(device, non_blocking=True)
        if not biased:
            return cls(columns_BC, None)
        width = max(map(len, biased))
        ids = [[*bias, *[0] * (width - len(bias))] for bias in biased]
        values = [[*bias.values(), *[0.0] * (width - len(bias))] for bias in biased]
        return cls(columns_BC, (to_device(ids, device, torch.int64), to_device(values, device, torch.float32)))

    @property
    def num_stop_ids(self) -> int:
        return self.columns_BC.shape[1] - len(Column)

    def take(self, index_N: torch.Tensor) -> "PickTable":
        """Return the table of some of the rows. The biases stay where they are."""
        return replace(self, columns_BC=self.columns_BC[index_N])

    def biases_of(self, vocab_size: int) -> torch.Tensor:
        """Return the biases of all token ids, float32 [R, V]."""
        if self.biases is None:
            return torch.empty(0, device=self.columns_BC.device)
        ids_RE, values_RE = self.biases
        nothing_RV = torch.zeros(len(ids_RE), vocab_size, device=ids_RE.device)
        return nothing_RV.scatter_add_(1, ids_RE, values_RE)
