"""Sums over ranks in one order: every rank gets the parts of all, and adds them from the first rank's to the last's.

An all-reduce may add in an order that follows the size of a message and the way between the devices: a token's numbers
then depend on how many rows run beside it. Here numbers are moved, and added by ourselves, in float32.

Shapes: R ranks, N lines, O outputs.
"""

import torch
from torch import distributed

from decoding.gpu.available import kernels_run_on

# Up to torch 2.12 it has another name.
_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


def gathered(own: torch.Tensor) -> torch.Tensor:
    """Return what all ranks have in place of this, [R, ...], in the order of ranks; they must all come by here."""
    found = own.new_empty(distributed.get_world_size(), *own.shape)
    if own.numel():  # a prompt's forward in transformers' code has no line for its head
        _gather(found.view(-1), own.flatten())
    return found


def summed(
    part_NO: torch.Tensor, bias_O: torch.Tensor | None = None, added_NO: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sum of all ranks' parts, of a bias and of what is added, [N, O], rounded once.

    A part has the dtype of the sum: it is rounded before, too.
    """
    parts_RNO = gathered(part_NO)
    if kernels_run_on(part_NO.device):
        from decoding.gpu.linear import Sums, add_parts  # Triton is only where the kernels run

        return add_parts(Sums(parts_RNO, bias_O, part_NO.dtype), added_NO)[0]
    total_NO = parts_RNO[0].float()
    for each in (*parts_RNO[1:], bias_O, added_NO):
        if each is not None:
            total_NO = total_NO + each
    return total_NO.to(part_NO.dtype)
