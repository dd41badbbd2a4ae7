"""Log-probabilities of tokens under raw logits, and of the most likely ones: for all rows of a round at once.

Shapes: B rows, K drafted tokens, J = K + 1 positions, P = B x J, V vocabulary; M of the positions, T likely tokens.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from decoding.device import to_device
from decoding.sequence import TokenLogprobs

_AT_ONCE_ON_GPU = 1 << 26  # log-probabilities


@dataclass(frozen=True)
class _Group:
    """The rows that ask for as many likely tokens."""

    rows: list[int]
    num_top: int


class RoundLogprobs:
    """The log-probabilities of a round's accepted and next tokens, for the rows that ask for them.

    The host does not know how many tokens a GPU accepts, and asking would stop it. So a GPU computes them at all
    positions, and a CPU at those that count.
    """

    def __init__(
        self,
        num_accepted_B: torch.Tensor,
        next_token_B: torch.Tensor,
        drafted_BK: torch.Tensor,
        logits_BJV: torch.Tensor,
        num_logprobs: Seq[int | None],
    ) -> None:
        """Compute them; `num_logprobs` says how many likely tokens each row asks for, None if it wants nothing."""
        self.packed: list[torch.Tensor] = []  # on the device, int64; floats are stored as the bits of float64
        self._groups: list[_Group] = []
        asked = {num_top for num_top in num_logprobs if num_top is not None}
        if not asked:
            return
        num_positions, vocab_size = logits_BJV.shape[1:]
        knows_counts = _knows_counts(logits_BJV.device)
        self._num_positions = None if knows_counts else num_positions  # of each row; None: those that count
        index_J = torch.arange(num_positions, device=logits_BJV.device)
        drafted_BJ = torch.nn.functional.pad(drafted_BK, (0, 1))
        tokens_BJ = torch.where(index_J < num_accepted_B[:, None], drafted_BJ, next_token_B[:, None])
        # What a row without finite logits would draw may lie outside the vocabulary.
        tokens_P = tokens_BJ.clamp(max=vocab_size - 1).flatten()
        for number in sorted(asked):
            rows = [row for row, num_top in enumerate(num_logprobs) if num_top == number]
            group = _Group(rows, min(number, vocab_size))
            starts_R = to_device([row * num_positions for row in rows], logits_BJV.device, torch.int64)
            parts: Seq[slice | torch.Tensor]
            if knows_counts:
                last_R = starts_R + num_accepted_B[rows]
                bounds = zip(starts_R.tolist(), last_R.tolist(), strict=True)
                parts = [slice(start, last + 1) for start, last in bounds]
            else:
                places_M = (starts_R[:, None] + index_J).flatten()
                parts = torch.split(places_M, max(1, _AT_ONCE_ON_GPU // vocab_size))
            found = _logprobs(logits_BJV.flatten(0, 1), tokens_P, parts, group.num_top)
            self.packed += [_bits(found[0]), _bits(found[1]), found[2].flatten()]
            self._groups.append(group)

    def of_rows(self, packed: torch.Tensor, num_tokens: Seq[int]) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        """Yield each asking row and its log-probabilities, given the numbers on the host and each row's tokens."""
        for group in self._groups:
            widths = [num_tokens[row] if self._num_positions is None else self._num_positions for row in group.rows]
            num_places, num_listed = sum(widths), sum(widths) * group.num_top
            chosen_M, listed = packed[:num_places].view(torch.float64), packed[num_places:]
            values_MT = listed[:num_listed].view(torch.float64).view(num_places, group.num_top)
            ids_MT = listed[num_listed : 2 * num_listed].view(num_places, group.num_top)
            packed = listed[2 * num_listed :]
            found = _listed(chosen_M, values_MT, ids_MT)
            ends = torch.tensor(widths).cumsum(0).tolist()
            for row, width, end in zip(group.rows, widths, ends, strict=True):
                yield row, found[end - width :][: num_tokens[row]]


def _logprobs(
    logits_PV: torch.Tensor, tokens_P: torch.Tensor, parts: Seq[slice | torch.Tensor], num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tokens' log-probabilities [M] at the positions of all parts, and the likely ones' and their ids."""
    found = []
    for part in parts:
        logprobs_MV = logits_PV[part].float().log_softmax(-1)
        chosen_M = logprobs_MV.gather(-1, tokens_P[part][:, None])[:, 0]
        found.append((chosen_M, *logprobs_MV.topk(num_top, dim=-1)))
    chosen_M, values_MT, ids_MT = (torch.cat(part) for part in zip(*found, strict=True))
    return chosen_M, values_MT, ids_MT


def _knows_counts(device: torch.device) -> bool:
    """Tell whether the host may read how many tokens are accepted without stopping the device."""
    return device.type == "cpu"


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.double().view(torch.int64).flatten()


def _listed(chosen_M: torch.Tensor, values_MT: torch.Tensor, ids_MT: torch.Tensor) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(logprob, tuple(zip(ids, values, strict=True)))
        for logprob, ids, values in zip(chosen_M.tolist(), ids_MT.tolist(), values_MT.tolist(), strict=True)
    ]
