"""PendingRound: the verdicts of a round, on their way from the device.

Shapes: B rows, K drafted tokens, C columns.
"""

from dataclasses import dataclass

import torch

NUM_COUNTS = 4  # columns before the drafted tokens, in the order of `RoundVerdicts`


@dataclass(frozen=True)
class RoundVerdicts:
    """What the target decided about each row's draft; of a row whose logits are not finite, nothing else matters."""

    num_accepted_B: list[int]
    next_token_B: list[int]
    is_finite_B: list[int]
    num_drafted_B: list[int]
    drafted_BK: list[list[int]]  # those past a row's number are padding


class PendingRound:
    """The verdicts of a round that has been started."""

    def __init__(self, columns_BC: torch.Tensor, num_rows: int, num_drafted: int) -> None:
        """Start one copy to the host; nothing waits for it before `result`."""
        self._num_rows, self._num_drafted = num_rows, num_drafted
        self._copied: torch.cuda.Event | None = None
        if columns_BC.device.type == "cuda":
            self._columns_BC = torch.empty(columns_BC.shape, dtype=columns_BC.dtype, pin_memory=True)
            self._columns_BC.copy_(columns_BC, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        else:
            self._columns_BC = columns_BC.clone()

    def result(self) -> RoundVerdicts:
        """Return the verdicts; those on rows that were not active have no meaning. The one wait of a round."""
        if self._copied is not None:
            self._copied.synchronize()
        columns_BC = self._columns_BC[: self._num_rows].numpy()
        accepted_B, next_B, is_finite_B, drafted_B = columns_BC[:, :NUM_COUNTS].T.tolist()
        drafted_BK = columns_BC[:, NUM_COUNTS : NUM_COUNTS + self._num_drafted]
        return RoundVerdicts(accepted_B, next_B, is_finite_B, drafted_B, drafted_BK.tolist())
