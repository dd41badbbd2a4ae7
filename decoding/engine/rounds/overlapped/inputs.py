"""RoundInputs: what the host gives a round, and the tensors that its recordings read it from.

Shapes: B rows, C columns of parameters, L lines of numbers, W newest tokens of a row.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

from decoding.fused.recordings import power_of_two
from decoding.gpu.attention import CHUNK
from decoding.gpu.pick_table import Column, PickTable

_LEAST_REACH = 4 * CHUNK  # positions
NUM_NEWEST = (2, 8, 32)  # tokens of a row that the first step of a draft may read
MOST_GIVEN = 64  # tokens that the host drafts for a row at most: no options and no prediction allow more


class Start(NamedTuple):
    """A row's state as the host knows it."""

    length: int  # of prompt and output
    previous: int  # the token before the newest one; of a row of one token, that one again
    newest: int
    before: tuple[int, ...] = ()  # tokens before these, where a draft reads more than two at first


@dataclass(frozen=True)
class RoundInputs:
    """What each row does in a round."""

    limits: Seq[int]  # tokens that the steps of the draft may draft; 0 for a row that takes no part
    is_active: Seq[bool]  # whether it takes part
    starts: dict[int, Start]  # of rows whose state the device does not hold
    given: Seq[Seq[int]] = ()  # tokens that the host drafts for each row, in place of the steps; empty: for no row
    num_newest: int = 2  # W: of all rows, whose starts are given if it is more than two

    @property
    def lengths(self) -> list[int]:
        """The tokens that are drafted for each row, at most."""
        given = self.given or [()] * len(self.limits)
        return [len(own) or limit for own, limit in zip(given, self.limits, strict=True)]

    @property
    def num_given(self) -> int:
        """The width of what the host drafts, rounded up: a draft that was looked up has any length."""
        return rounded_width(max(map(len, self.given), default=0))

    @property
    def num_drafted(self) -> int:
        """The width of what is drafted."""
        return max(*self.limits, self.num_given)


class Given(IntEnum):
    """Lines of `InputBuffers.given_LB`: one number of each a row. Its newest and its given tokens follow."""

    IS_ACTIVE = 0
    IS_FRESH = 1  # the state is given, or does not matter
    LENGTH = 2
    LIMIT = 3  # tokens that are drafted at most
    IS_GIVEN = 4  # whether the host drafts them


class InputBuffers:
    """The tensors that the recordings of a number of rows read."""

    def __init__(self, num_rows: int, num_stop_ids: int, like: PickTable) -> None:
        """Make tensors for this many rows, and stop ids of each, on the device of a table."""
        self.num_rows = num_rows
        self.given_LB = like.columns_BC.new_zeros(len(Given) + NUM_NEWEST[-1] + MOST_GIVEN, num_rows)
        self.columns_BC = like.columns_BC.new_full((num_rows, len(Column) + num_stop_ids), -1)
        self.columns_BC[:, : len(Column)] = like.columns_BC[:1, : len(Column)]
        self.no_biases = torch.empty(0, dtype=torch.float32, device=like.columns_BC.device)
        self._table: PickTable | None = None  # that was copied last

    def take(self, inputs: RoundInputs, table: PickTable) -> None:
        """Copy what the host gives into these tensors: one copy, and another one where the table is a new one."""
        num_before = len(Given) + inputs.num_newest
        given_LB = np.zeros((num_before + inputs.num_given, self.num_rows), dtype=np.int64)
        num_rows = len(inputs.limits)
        is_active_B = np.array(inputs.is_active)
        given_LB[Given.IS_ACTIVE, :num_rows] = is_active_B
        given_LB[Given.LIMIT, :num_rows] = inputs.lengths
        given_LB[Given.IS_FRESH] = 1  # padding, too
        given_LB[Given.IS_FRESH, :num_rows] = ~is_active_B
        given_LB[Given.LENGTH] = 1
        for row, start in inputs.starts.items():
            given_LB[Given.IS_FRESH, row] = 1
            given_LB[Given.LENGTH, row] = start.length
            given_LB[len(Given) : num_before, row] = *start.before, start.previous, start.newest
        for row, tokens in enumerate(inputs.given):
            given_LB[Given.IS_GIVEN, row] = bool(tokens)
            given_LB[num_before : num_before + len(tokens), row] = tokens
        self.given_LB[: len(given_LB)].copy_(torch.from_numpy(given_LB), non_blocking=True)
        if table is not self._table:
            own_BC = self.columns_BC[: len(table.columns_BC)]
            num_columns = table.columns_BC.shape[1]
            own_BC[:, :num_columns].copy_(table.columns_BC)
            own_BC[:, num_columns:] = -1  # no stop id
            # Padding has what other rows had: with penalties it would read counts, which may not be there.
            self.columns_BC[len(own_BC) :, Column.USES_COUNTS] = 0
            self._table = table


def rounded_width(num_drafted: int) -> int:
    """Round the drafted tokens that are judged up: 0, 1, 2, 4, 8, ..."""
    return num_drafted if num_drafted <= 1 else power_of_two(num_drafted)


def reach_of(num_visible: int) -> int:
    """Round the positions that attention may read up. Chunks that no row has cost nothing."""
    return max(_LEAST_REACH, power_of_two(-(-num_visible // CHUNK)) * CHUNK)
