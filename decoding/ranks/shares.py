"""Shares: this process's parts of the linear layers and the embedding of a network that ranks share out.

transformers loads the parts as DTensors and replaces the modules' forwards. `take_shares` turns them into plain modules
over the same memory, which can be packed and fused as those of a whole network, and puts what joins the ranks' numbers
around those that need it.

Shapes: R ranks, N lines, I inputs, O outputs, V vocabulary.
"""

import re
from typing import Any

import torch
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from decoding.ranks.sums import gathered, summed


class Share(torch.nn.Module):
    """A module of which each rank has a part, its `own`, and that gives the same numbers in all of them."""

    def __init__(self, own: Any, num_in_all: int) -> None:
        """Join `own` with those of the other ranks, where a whole module has this many outputs, or tokens."""
        super().__init__()
        self.own, self.num_in_all = own, num_in_all
        self.num_ranks = distributed.get_world_size()


class SummedLinear(Share):
    """A linear layer of which each rank has some of the inputs."""

    def __init__(self, own: Any, num_in_all: int) -> None:
        super().__init__(own, num_in_all)
        self.out_features, self.bias, own.bias = num_in_all, own.bias, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O], of which x has this rank's inputs."""
        return summed(self.own(x).flatten(0, -2), self.bias).view(*x.shape[:-1], self.out_features)

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`."""
        return summed(self.own(x_NI), self.bias, other_NO)


class GatheredLinear(Share):
    """A linear layer of which each rank has as many of the outputs; the last one may have fewer."""

    def __init__(self, own: Any, num_in_all: int) -> None:
        super().__init__(own, num_in_all)
        self.out_features = num_in_all
        self._forward_pre_hooks, own._forward_pre_hooks = own._forward_pre_hooks, self._forward_pre_hooks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]."""
        own: torch.Tensor = self.own(x)
        num_missing = -(-self.num_in_all // self.num_ranks) - own.shape[-1]
        parts = gathered(pad(own, (0, num_missing)) if num_missing else own)
        return parts.movedim(0, -2).flatten(-2)[..., : self.num_in_all].contiguous()


class SharedEmbedding(Share):
    """An embedding of which each rank has as many tokens; the last one may have fewer."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the line of each id: that of one rank, and zeros of the others, which change nothing."""
        first = -(-self.num_in_all // self.num_ranks) * distributed.get_rank()
        end = min(self.num_in_all, first + -(-self.num_in_all // self.num_ranks))
        lines = self.own(ids.clamp(first, end - 1) - first)
        is_elsewhere = (ids < first) | (ids >= end)
        return summed(lines.masked_fill(is_elsewhere[..., None], 0.0).flatten(0, -2)).view_as(lines)


# How transformers shares a module out, and what joins the parts; nothing where each rank goes on with its own.
_JOINS: dict[str | None, type[Share] | None] = {
    "colwise": None,
    "rowwise": SummedLinear,
    "colwise_gather_output": GatheredLinear,
    "embedding_rowwise": SharedEmbedding,
}


def take_shares(network: PreTrainedModel) -> bool:
    """Make plain modules of a network's shares; return False, and change nothing, if one is shared out otherwise.

    Outputs are gathered for the head alone. Where a family gathers those of other layers, each rank would need them
    between two products that are one when layers are fused.
    """
    head, plan = network.get_output_embeddings(), network.tp_plan
    shares = [
        (name, module, plan.get(re.sub(r"\d+", "*", name)))
        for name, module in network.named_modules()
        if any(isinstance(each, DTensor) for each in module.parameters(recurse=False))
    ]
    if not all(how in _JOINS and (how != "colwise_gather_output" or module is head) for _, module, how in shares):
        return False
    plain: dict[int, torch.nn.Parameter] = {}  # by the DTensor, since a head may be tied
    for name, module, how in shares:
        num_in_all = module.weight.shape[0]
        _make_plain(module, plain)
        if (join := _JOINS[how]) is not None:
            parent, _, own_name = name.rpartition(".")
            setattr(network.get_submodule(parent), own_name, join(module, num_in_all))
    return True


def part_of(module: Any) -> Any:
    """Return what multiplies in this process: a module, or its part of one that is shared out."""
    return module.own if isinstance(module, Share) else module


def _make_plain(module: Any, plain: dict[int, torch.nn.Parameter]) -> None:
    vars(module).pop("forward", None)  # which waits for the other ranks
    for name, parameter in list(module.named_parameters(recurse=False)):
        if isinstance(parameter, DTensor):
            if id(parameter) not in plain:
                plain[id(parameter)] = torch.nn.Parameter(parameter.to_local().contiguous(), requires_grad=False)
            setattr(module, name, plain[id(parameter)])
    if isinstance(module, torch.nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    else:
        module.num_embeddings, module.padding_idx = len(module.weight), None  # that of all tokens, for training alone
